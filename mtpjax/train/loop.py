"""The training loop, from top to bottom."""

import dataclasses
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from mtpjax import config as config_lib
from mtpjax import parallel
from mtpjax.checkpoint import Store
from mtpjax.data import Loader
from mtpjax.errors import UserError
from mtpjax.heads import MultiTokenModel, train_flops_per_token
from mtpjax.train.hardware import peak_flops
from mtpjax.train.hooks import Hook, run_hooks
from mtpjax.train.metrics import Window
from mtpjax.train.state import TrainState
from mtpjax.train.step import StepMetrics

# (step, "train" or "eval", values by name)
Report = Callable[[int, str, dict[str, float]], None]


@dataclasses.dataclass
class Run:
  """The parts of a run, put together by `jobs/train.py`.

  Attributes:
    config: the experiment.
    model: the model.
    train_step: from `make_train_step`.
    loader: rows by step.
    store: checkpoints.
    metadata: saved with every checkpoint.
    evaluate: parameters -> values by name; None to never evaluate.
    report: receives all metrics.
    hooks: what else to do between steps, after the evaluation and before the
      save.
    say: receives warnings, a line each.
    note: receives what is happening, in a word, whenever that changes.
  """

  config: config_lib.Config
  model: MultiTokenModel
  train_step: Callable[[TrainState, Any], tuple[TrainState, StepMetrics]]
  loader: Loader
  store: Store
  metadata: dict[str, Any]
  evaluate: Callable[[Any], dict[str, float]] | None
  report: Report
  hooks: Sequence[Hook] = ()
  say: Callable[[str], None] = print
  note: Callable[[str], None] = lambda text: None


def train(run: Run, state: TrainState) -> TrainState:
  """Runs from `state` to the last step.

  Metrics are fetched one step late, so that the device always has work, and
  once more before a save. SIGTERM or Ctrl-C ends the run after the current
  step with a checkpoint; where they are ignored they stay so.

  Args:
    run: the parts.
    state: a fresh or restored state; it is donated.

  Returns:
    The last state.

  Raises:
    UserError: a loss or gradient is not finite. No such state is saved.
    KeyboardInterrupt: Ctrl-C has ended the run; its checkpoint is complete.
  """
  config = run.config.train
  meter = _Meter(run)
  hooks = _hooks(run, meter)
  late: tuple[int, StepMetrics] | None = None
  step = int(state.step)
  is_first = True
  with _stop_signal() as stop_signal, run.loader.iterate(step) as batches:
    while step < config.steps:
      run.note("compiling" if is_first else "training")
      batch = parallel.place_batch(next(batches), run.model.mesh)
      state, metrics = run.train_step(state, batch)
      run.note("training")
      step += 1
      if late is not None:
        meter.read(*late)
      late = step, metrics
      is_last, is_stopping = step == config.steps, bool(stop_signal())
      due = [h for h in hooks if h.is_due(step, is_last, is_stopping)]
      if due:
        meter.read(*late)
        late = None
        # A line ends here, so that a resumed run writes the same lines.
        meter.write(step)
        run_hooks(due, step, state, run.note)
      if is_stopping:
        break
      if is_first or not all(hook.is_timed for hook in due):
        # Neither evaluation nor compilation is training.
        meter.window.start_clock()
      is_first = False
  run.note("saving")
  run.store.wait()
  if step < config.steps:
    run.say(
      f"stopped at step {step}, saved; the same command goes on from here"
    )
  if stop_signal() == signal.SIGINT:
    # What would have followed is not wanted either.
    raise KeyboardInterrupt
  return state


def _hooks(run: Run, meter: "_Meter") -> list[Hook]:
  """Returns what is done between steps, in order.

  Saved last, so that a run that dies before that does all of it again.
  """
  config = run.config.train
  hooks = list(run.hooks)
  if run.evaluate is not None:
    evaluate = run.evaluate

    def report(step: int, state: TrainState) -> None:
      values = evaluate(state.params)
      meter.warn_of_nothing(step, values, "in the evaluation")
      run.report(step, "eval", values)

    hooks.insert(0, Hook("evaluating", report, config.eval_every))

  def save(step: int, state: TrainState) -> None:
    run.store.save(step, state, {**run.metadata, "step": step}, log=run.say)

  # Its seconds are training's: it goes on in the background.
  saving = Hook("saving", save, config.save_every, on_stop=True, is_timed=True)
  return [*hooks, saving]


class _Meter:
  """Reads the metrics of steps, stops at bad ones, writes lines of them."""

  def __init__(self, run: Run):
    self.run = run
    c = run.config
    self.window = Window(c.heads.offsets, c.loss.weights)
    self.tokens_per_step = c.train.batch_size * c.data.row_length
    device = run.model.mesh.devices.flat[0]
    peak = peak_flops(device, c.train.peak_tflops)
    # Seconds of all devices at their peak that a token is worth.
    self.peak_secs: dict[str, float] = {}
    if peak is not None:
      self.peak_secs = {
        name: train_flops_per_token(run.model, c.data.row_length, with_heads)
        / (peak * run.model.mesh.size)
        for name, with_heads in (("mfu", True), ("mfu_without_heads", False))
      }

  def read(self, step: int, metrics: StepMetrics) -> None:
    metrics = jax.device_get(metrics)
    if not metrics.is_finite:
      self.write(step - 1)  # what led here is what one wants to look at
      raise UserError(
        _not_finite(step, metrics, self.run.config)
        + f" The last checkpoint is {self._last_checkpoint()}."
      )
    self.window.add(metrics)
    if step % self.run.config.train.log_every == 0:
      self.write(step)

  def write(self, step: int) -> None:
    if not self.window.steps:
      return
    line = self.window.close(self.tokens_per_step)
    for name, secs in self.peak_secs.items():
      line[name] = line["tokens_per_sec"] * secs
    self.warn_of_nothing(step, line, "since the last line")
    self.run.report(step, "train", line)

  def warn_of_nothing(
    self, step: int, values: dict[str, float], when: str
  ) -> None:
    """Says which offsets had no targets, and so have no loss."""
    for offset in self.run.config.heads.offsets:
      if not values[f"targets/offset_{offset}"]:
        self.run.say(
          f"WARNING: step {step}: no valid target at offset {offset} {when}; "
          "documents are too short for it, or the loss mask leaves nothing of "
          "them"
        )

  def _last_checkpoint(self) -> str:
    self.run.store.wait()
    step = self.run.store.latest_step()
    return "none yet" if step is None else f"step {step}"


def _not_finite(
  step: int, metrics: StepMetrics, config: config_lib.Config
) -> str:
  offsets = config.heads.offsets
  bad = [
    offset
    for offset, nll in zip(offsets, metrics.sums.nll_M, strict=True)
    if not np.isfinite(nll)
  ]
  where = (
    f"the loss of offset {', '.join(map(str, bad))}" if bad else "the gradient"
  )
  return (
    f"step {step}: {where} is not finite (loss {metrics.loss}, gradient norm "
    f"{metrics.grad_norm}, learning rate {metrics.learning_rate:.3g}); the "
    "state before it is kept and nothing bad was saved. Look at grad_norm in "
    f"metrics.jsonl; then, in a new --workdir, {_ways_out(config)}"
  )


def _ways_out(config: config_lib.Config) -> str:
  """What may help against a loss that is not finite, as this run is set."""
  ways = ["lower --optim.peak-lr", "raise --optim.warmup-steps"]
  if not config.optim.clip_norm:
    ways.append("clip the gradient with --optim.clip-norm 1")
  if not config.base.path:  # there the dtypes are the base's
    for name in ("dtype", "param_dtype"):
      if getattr(config.model, name) == "bfloat16":
        ways.append(f"try --model.{name.replace('_', '-')} float32")
  return f"{', '.join(ways[:-1])} or {ways[-1]}"


@contextmanager
def _stop_signal() -> Iterator[Callable[[], int]]:
  """Turns SIGTERM and Ctrl-C into a question the loop asks: which, or 0."""
  received: list[int] = []

  def note(number, frame):
    if received:  # asked twice: at once
      raise KeyboardInterrupt
    received.append(number)

  try:
    previous = {
      s: signal.signal(s, note)
      for s in (signal.SIGTERM, signal.SIGINT)
      if signal.getsignal(s) is not signal.SIG_IGN
    }
  except ValueError:  # not the main thread: its owner handles signals
    yield lambda: 0
    return
  try:
    yield lambda: received[0] if received else 0
  finally:
    for number, handler in previous.items():
      signal.signal(number, handler)
