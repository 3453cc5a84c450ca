"""Block verification: the drafts of a chain, judged together."""

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
class Block(Verifier):
  """Block verification (Sun et al. 2024); see `judge`."""

  needs_draft_probs: ClassVar[bool] = True
  chains_only: ClassVar[bool] = True

  def check(self, tree: Tree) -> None:
    """Raises UserError unless the tree is a chain of first candidates."""
    if tree.is_path:
      return
    for node, (parent, rank) in enumerate(
      zip(tree.parents, tree.ranks, strict=True)
    ):
      if parent != max(node - 1, 0) or rank:
        raise UserError(
          f"verifier: block is for chains of rank 0, and node {node} has rank "
          f"{rank} after node {parent}; take coupled or rejection"
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
    """Block verification of a chain.

    The paper tosses a coin of probability h_i for each draft and keeps all up
    to tau, the last success. Here the same law is read from the root: draft i
    is taken with probability P(tau >= i) / P(tau >= i - 1). It accepts as many
    drafts as any lossless rule that sees one chain.

    Args:
      tree: a chain; see `check`.
      tokens_BQ: token of each node, drawn from the draft of its depth.
      valid_BQ: whether a node holds a draft; the chain ends before the first
        that doesn't, or whose draft has no mass there.
      target_BQV: target after each node, at least float32.
      draft_BMV: distributions of drafts.
      drawn_from: see `Verifier.judge`.

    Returns:
      `Conditionals`.

    Source: Sun et al. 2024, arXiv 2403.10444, algorithm 2.
    """
    assert draft_BMV is not None
    n_drafts = tree.max_depth
    depth_M = np.arange(n_drafts)
    target_BMV = target_BQV[:, :-1]
    draft_BMV = draft_BMV[:, np.array(drawn_from or depth_M, int)]
    tokens_BM, valid_BM = tokens_BQ[:, 1:], valid_BQ[:, 1:]
    p_BM = mass_of(target_BMV, depth_M, tokens_BM, valid_BM)
    q_BM = mass_of(draft_BMV, depth_M, tokens_BM, valid_BM)
    exists_BM = jnp.cumprod(q_BM > 0, axis=1) > 0
    ratio_BM = jnp.where(exists_BM, p_BM / jnp.where(exists_BM, q_BM, 1), 0)

    # p_i of the paper; 0 after the end of the chain.
    weights = [jnp.ones_like(target_BQV[:, 0, 0])]
    for m in range(n_drafts):
      weights.append(jnp.minimum(weights[-1] * ratio_BM[:, m], 1))
    weight_BQ = jnp.stack(weights, axis=1)
    weight_BM = weight_BQ[:, :-1]
    excess_BMV = jnp.maximum(weight_BM[..., None] * target_BMV - draft_BMV, 0)
    excess_BM = jnp.sum(excess_BMV, axis=-1)
    # 0 / 0 where the next draft is exact: it's accepted, and h_i plays no part.
    is_whole_BM = weight_BM >= 1
    success_BM = jnp.where(
      is_whole_BM,
      1,
      excess_BM / jnp.where(is_whole_BM, 1, excess_BM + 1 - weight_BM),
    )
    success_BM = jnp.where(exists_BM, success_BM, weight_BM)

    # P(tau >= i) = h_i + (1 - h_i) P(tau >= i + 1), which loses no digits.
    reach_B, accepts = weight_BQ[:, -1], []
    for m in reversed(range(n_drafts)):
      h_B = success_BM[:, m]
      before_B = h_B + (1 - h_B) * reach_B
      before_B = before_B if m else jnp.ones_like(before_B)
      is_reached_B = before_B > 0
      accepts.append(
        jnp.where(
          is_reached_B, reach_B / jnp.where(is_reached_B, before_B, 1), 0
        )
      )
      reach_B = before_B
    accepts.append(jnp.ones_like(reach_B))
    emit_BMV = jnp.where(
      exists_BM[..., None], normalized(excess_BMV, target_BMV), target_BMV
    )
    return Conditionals(
      jnp.stack(accepts[::-1], axis=1),
      jnp.concatenate([emit_BMV, target_BQV[:, -1:]], axis=1),
    )
