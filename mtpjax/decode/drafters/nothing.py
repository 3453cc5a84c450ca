"""No drafts: plain decoding."""

import dataclasses

from mtpjax.decode.drafters.drafter import Context, Drafter
from mtpjax.decode.drafters.drafts import Drafts
from mtpjax.decode.tree import Tree
from mtpjax.errors import UserError
from mtpjax.heads import MultiTokenModel


@dataclasses.dataclass(frozen=True)
class NoDrafts(Drafter):
  """Leaves the root alone."""

  def check(self, model: MultiTokenModel, tree: Tree) -> None:
    """Raises UserError for a tree with drafts."""
    del model
    if tree.max_depth:
      raise UserError(
        f"tree: {tree.size} nodes, but nothing drafts; take the root alone"
      )

  def propose(self, context: Context, carry: tuple[()]) -> Drafts:
    """Returns none."""
    del carry
    return Drafts.none(context.root_B)
