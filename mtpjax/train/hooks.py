"""What the loop does between steps: evaluate, save, and whatever is added."""

import contextlib
import dataclasses
from collections.abc import Callable, Sequence

from mtpjax.train.state import TrainState


@dataclasses.dataclass(frozen=True)
class Hook:
  """Work that is due after some steps.

  Attributes:
    name: what progress shows meanwhile, as "evaluating".
    run: (completed steps, state) -> None; the state is only read.
    every: steps from one run to the next; 0 waits for the last step.
    on_stop: due, too, when a signal ends the run early.
    is_timed: its seconds are the run's: they count in tokens per second.
  """

  name: str
  run: Callable[[int, TrainState], None]
  every: int = 0
  on_stop: bool = False
  is_timed: bool = False

  def is_due(self, step: int, is_last: bool, is_stopping: bool) -> bool:
    """Returns whether to run after this step."""
    is_regular = self.every > 0 and step % self.every == 0
    return is_last or is_regular or (is_stopping and self.on_stop)


def run_hooks(
  hooks: Sequence[Hook],
  step: int,
  state: TrainState,
  note: Callable[[str], None],
) -> None:
  """Runs hooks in order, each of them even if one before it fails.

  So a state that cost hours is saved though its evaluation has failed.

  Args:
    hooks: those that are due.
    step: completed steps.
    state: after that step.
    note: receives the name of each.

  Raises:
    Exception: what a hook raised.
  """

  def run(hook: Hook) -> None:
    note(hook.name)
    hook.run(step, state)

  with contextlib.ExitStack() as stack:
    for hook in reversed(hooks):
      stack.callback(run, hook)
