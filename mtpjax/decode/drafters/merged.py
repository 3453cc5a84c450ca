"""Lookup where the text repeats itself, the heads elsewhere, row by row."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from mtpjax.decode.drafters.drafter import (
  Committed,
  Context,
  Drafter,
  Prompts,
)
from mtpjax.decode.drafters.drafts import Drafts
from mtpjax.decode.drafters.lookup import Lookup
from mtpjax.decode.tree import Tree
from mtpjax.heads import MultiTokenModel


@dataclasses.dataclass(frozen=True)
class Merged(Drafter):
  """A chain from lookup if enough of the text's end occurred before.

  The heads reach less far than lookup; a row that they draft for has no drafts
  beyond that.

  Attributes:
    heads: drafts from the model's heads.
    lookup: drafts from the text.
    least: tokens of the text's end that must have occurred before for a row to
      take what lookup proposes.
  """

  heads: Drafter
  lookup: Lookup
  least: int = 2
  keeps_nothing: ClassVar[bool] = False

  @property
  def keeper(self) -> Drafter:
    """The heads."""
    return self.heads

  def check(self, model: MultiTokenModel, tree: Tree) -> None:
    """Raises UserError for a tree with branches."""
    self.lookup.check(model, tree)

  def _reach(self, model: MultiTokenModel, tree: Tree) -> Tree:
    return Tree.chain(min(tree.max_depth, model.heads.chain_length))

  def empty(self, model: MultiTokenModel, batch: int, positions: int) -> Any:
    """Returns the carry of the heads."""
    return self.heads.empty(model, batch, positions)

  def prefill(
    self, model: MultiTokenModel, params: Any, carry: Any, prompts: Prompts
  ) -> Any:
    """Prefills the heads."""
    return self.heads.prefill(model, params, carry, prompts)

  def propose(self, context: Context, carry: Any) -> Drafts:
    """Proposes a chain, in each row from one of the two."""
    depth = context.tree.max_depth
    tree = self._reach(context.model, context.tree)
    ours = self.heads.propose(context._replace(tree=tree), carry)
    found, n_matched_B = self.lookup.search(context)
    takes_B = n_matched_B >= self.least

    def merge(a: jax.Array, b: jax.Array) -> jax.Array:
      room = [(0, 0)] * b.ndim
      room[1] = (0, depth - tree.max_depth)
      takes = takes_B.reshape(-1, *(1,) * (b.ndim - 1))
      return jnp.where(takes, a, jnp.pad(b, room))

    return jax.tree.map(merge, found, ours.replace(drawn_from=found.drawn_from))

  def commit(
    self, model: MultiTokenModel, params: Any, carry: Any, committed: Committed
  ) -> Any:
    """Commits to the heads."""
    return self.heads.commit(model, params, carry, committed)
