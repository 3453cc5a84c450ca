"""Heads that run while nobody looks, to measure what they cost."""

import dataclasses
from typing import Any, ClassVar

import jax.numpy as jnp

from mtpjax.decode import Tree
from mtpjax.decode.drafters import Committed, Context, Drafter, Drafts, Prompts
from mtpjax.heads import MultiTokenModel


@dataclasses.dataclass(frozen=True)
class Unseen(Drafter):
  """Runs a drafter and throws its drafts away.

  Attributes:
    drafter: what runs.
    n: drafts it makes, a chain of them.
  """

  drafter: Drafter
  n: int
  keeps_nothing: ClassVar[bool] = False

  def n_ranked(self, tree: Tree) -> int:
    """All that it makes, whatever the tree."""
    del tree
    return self.n

  def empty(self, model: MultiTokenModel, batch: int, positions: int) -> Any:
    """Returns what the drafter keeps."""
    return self.drafter.empty(model, batch, positions)

  def prefill(
    self, model: MultiTokenModel, params: Any, carry: Any, prompts: Prompts
  ) -> Any:
    """Prefills the drafter."""
    return self.drafter.prefill(model, params, carry, prompts)

  def propose(self, context: Context, carry: Any) -> Drafts:
    """Returns no drafts."""
    tree = Tree.chain(self.n)
    drafts = self.drafter.propose(context._replace(tree=tree), carry)
    # Nobody looks at these drafts, and the compiler must not know; it does see
    # through optimization barriers. No token is below 0.
    never_B = jnp.any(drafts.tokens_BQ < 0, axis=1)
    return Drafts.none(jnp.where(never_B, 0, context.root_B))

  def commit(
    self, model: MultiTokenModel, params: Any, carry: Any, committed: Committed
  ) -> Any:
    """Commits to the drafter."""
    return self.drafter.commit(model, params, carry, committed)
