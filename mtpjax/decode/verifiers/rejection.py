"""Recursive rejection: sampled siblings, tried in the order of their draw."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from mtpjax.decode.tree import Tree
from mtpjax.decode.verifiers.distribution import mass_of, normalized
from mtpjax.decode.verifiers.sampler import Conditionals
from mtpjax.decode.verifiers.verifier import Verifier
from mtpjax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Rejection(Verifier):
  """Recursive rejection sampling without replacement; see `judge`."""

  needs_draft_probs: ClassVar[bool] = True

  def check(self, tree: Tree) -> None:
    """Raises UserError unless children are the first candidates drawn."""
    for node in range(tree.size):
      ranks = [
        tree.ranks[child]
        for child in tree.children_QC[node][tree.has_child_QC[node]]
      ]
      if ranks != list(range(len(ranks))):
        raise UserError(
          f"verifier: rejection needs the children of node {node} to have "
          f"ranks 0 to {len(ranks) - 1}, as they are drawn; they have "
          f"{', '.join(map(str, ranks))}"
        )

  def judge(
    self,
    tree: Tree,
    tokens_BQ: jax.Array,
    valid_BQ: jax.Array,
    target_BQV: jax.Array,
    draft_BMV: jax.Array | None,
    drawn_from: Sequence[int] = (),
  ) -> Conditionals:
    """Recursive rejection sampling without replacement.

    With p the target after a node and q the draft of the next depth, child c is
    taken with probability min(1, p(c) / q(c)); if it isn't, p becomes
    norm([p - q]+), then q loses c and is normalised, and the next child is
    tried. Lossless for a fixed tree that passes `check`: of each depth
    only one parent's children are ever looked at, so all parents may share
    them.
    The drafts of different depths must be drawn independently.

    A chain is the rule of speculative sampling; a draft that was not sampled is
    one of a one-hot q, which lets rank 0 alone be taken.

    Args:
      tree: the tree.
      tokens_BQ: token of each node; the children of a node are the first of one
        list per depth, drawn from q without replacement, in the order of draw.
      valid_BQ: whether a node holds a draft. One that doesn't, or whose q(c) is
        0, is passed over. Lossless only if no draft is valid after an invalid
        sibling that was drawn too, and validity does not hang on the draws.
      target_BQV: p after each node, at least float32.
      draft_BMV: distributions of drafts, q those of siblings.
      drawn_from: see `Verifier.judge`.

    Returns:
      `Conditionals`.

    Source: Leviathan et al. 2023, arXiv 2211.17192, algorithm 1; Jeon et al.
    2024, arXiv 2402.14160 (recursive speculative decoding).
    """
    assert draft_BMV is not None
    # Leaves keep their target, and they are most of a tree.
    inner_P = np.flatnonzero(tree.has_child_QC.any(axis=1))
    target_BPV = target_BQV[:, inner_P]
    from_I = np.array(drawn_from or tree.depth_Q[1:] - 1, int)
    draft_BPV = draft_BMV[:, from_I[tree.children_QC[inner_P, :1].ravel() - 1]]
    accept_BQ = jnp.ones(tokens_BQ.shape, target_BQV.dtype)
    for has_P, child_P in zip(
      tree.has_child_QC[inner_P].T, tree.children_QC[inner_P].T, strict=True
    ):
      at_N = np.flatnonzero(has_P)
      child_N = child_P[at_N]
      p_BNV, q_BNV = target_BPV[:, at_N], draft_BPV[:, at_N]
      token_BN, valid_BN = tokens_BQ[:, child_N], valid_BQ[:, child_N]
      p_BN = mass_of(p_BNV, np.arange(at_N.size), token_BN, valid_BN)
      q_BN = mass_of(q_BNV, np.arange(at_N.size), token_BN, valid_BN)
      is_drawn_BN = q_BN > 0
      accept_BQ = accept_BQ.at[:, child_N].set(
        jnp.where(
          is_drawn_BN,
          jnp.minimum(p_BN / jnp.where(is_drawn_BN, q_BN, 1), 1),
          0,
        )
      )
      is_drawn_BN1 = is_drawn_BN[..., None]
      # By rounding nothing may be left of p; it then equals q, and stays.
      residual_BNV = normalized(jnp.maximum(p_BNV - q_BNV, 0), p_BNV)
      is_tried_BNV = jnp.arange(q_BNV.shape[-1]) == token_BN[..., None]
      untried_BNV = jnp.where(is_tried_BNV, 0, q_BNV)
      target_BPV = target_BPV.at[:, at_N].set(
        jnp.where(is_drawn_BN1, residual_BNV, p_BNV)
      )
      draft_BPV = draft_BPV.at[:, at_N].set(
        jnp.where(is_drawn_BN1, normalized(untried_BNV, untried_BNV), q_BNV)
      )
    return Conditionals(accept_BQ, target_BQV.at[:, inner_P].set(target_BPV))
