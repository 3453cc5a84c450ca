"""Programs with several drafters can take turns on one state."""

import dataclasses
from typing import Any, ClassVar

from mtpjax.decode.drafters.drafter import (
  Committed,
  Context,
  Drafter,
  Prompts,
)
from mtpjax.decode.drafters.drafts import Drafts
from mtpjax.decode.tree import Tree
from mtpjax.heads import MultiTokenModel


@dataclasses.dataclass(frozen=True)
class Keeping(Drafter):
  """Drafts with one drafter and keeps what others need.

  Attributes:
    drafter: proposes; its keeper is one of `kept`, or it keeps nothing.
    kept: drafters whose carries are kept, the same in all programs.
  """

  drafter: Drafter
  kept: tuple[Drafter, ...]
  keeps_nothing: ClassVar[bool] = False

  def check(self, model: MultiTokenModel, tree: Tree) -> None:
    """Raises UserError for a tree that the one who drafts cannot fill."""
    self.drafter.check(model, tree)

  def n_ranked(self, tree: Tree) -> int:
    """Those of the one who drafts."""
    return self.drafter.n_ranked(tree)

  def empty(self, model: MultiTokenModel, batch: int, positions: int) -> Any:
    """Returns a carry per kept drafter."""
    return tuple(one.empty(model, batch, positions) for one in self.kept)

  def prefill(
    self, model: MultiTokenModel, params: Any, carry: Any, prompts: Prompts
  ) -> Any:
    """Prefills all that is kept."""
    return tuple(
      one.prefill(model, params, own, prompts)
      for one, own in zip(self.kept, carry, strict=True)
    )

  def propose(self, context: Context, carry: Any) -> Drafts:
    """Proposes what the one who drafts does."""
    own = ()
    if not self.drafter.keeps_nothing:
      own = carry[self.kept.index(self.drafter.keeper)]
    return self.drafter.propose(context, own)

  def commit(
    self, model: MultiTokenModel, params: Any, carry: Any, committed: Committed
  ) -> Any:
    """Commits to all that is kept."""
    return tuple(
      one.commit(model, params, own, committed)
      for one, own in zip(self.kept, carry, strict=True)
    )
