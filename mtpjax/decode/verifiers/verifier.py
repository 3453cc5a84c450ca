"""What every verifier is: a frozen value, its options its fields."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import jax

from mtpjax.decode.tree import Tree
from mtpjax.decode.verifiers.sampler import Conditionals


@dataclasses.dataclass(frozen=True)
class Verifier:
  """Judges drafts of rows at a temperature; greedy rows need no judge.

  A verifier of your own is a subclass in a file of its own and a line in
  `VERIFIERS`. Its fields are its options, each with a default; the command
  takes them as `--verifier mine:option=0.5`.

  Attributes:
    is_lossless: the distribution of texts is that of plain sampling.
    shares_noise: target and draft see the noise of a position, so that drafts
      stand if they equal the target. `judge` is then never called.
    needs_draft_probs: drafts are drawn with noise of their own, and `judge`
      gets the distributions they were drawn from.
    chains_only: takes trees without branches.
  """

  is_lossless: ClassVar[bool] = True
  shares_noise: ClassVar[bool] = False
  needs_draft_probs: ClassVar[bool] = False
  chains_only: ClassVar[bool] = False

  def check(self, tree: Tree) -> None:
    """Raises UserError for a tree that this verifier can't judge."""
    del tree

  def judge(
    self,
    tree: Tree,
    tokens_BQ: jax.Array,
    valid_BQ: jax.Array,
    target_BQV: jax.Array,
    draft_BMV: jax.Array | None,
    drawn_from: Sequence[int] = (),
  ) -> Conditionals:
    """Says how likely each node stands, and what follows it.

    Args:
      tree: a tree that passes `check`.
      tokens_BQ: token of each node.
      valid_BQ: whether a node holds a draft.
      target_BQV: the model's distribution after each node, at least float32.
      draft_BMV: the distributions that drafts were drawn from; None unless
        `needs_draft_probs`.
      drawn_from: for each node but the root, which of these; by default that
        of its depth. Siblings share one.

    Returns:
      `Conditionals`.
    """
    raise NotImplementedError
