"""The one walk of all verifiers that sample."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from mtpjax.decode.tree import Tree
from mtpjax.decode.verifiers.verdict import Verdict, deepest


class Conditionals(struct.PyTreeNode):
  """A verifier's decision as probabilities, given the drafts.

  Attributes:
    accept_BQ: probability that a node is taken, given that its parent was
      reached and none of its earlier siblings, in rank order, was taken.
      Nothing reads that of the root.
    emit_BQV: distribution of the last token if the walk stops at a node.
  """

  accept_BQ: jax.Array
  emit_BQV: jax.Array


def inverse_cdf(mass_BV: jax.Array, uniform_B: jax.Array) -> jax.Array:
  """Draws the token at which the cumulative mass passes the uniform.

  A token without mass never comes: it is masked, because a parallel
  cumulative sum may grow, or shrink, by rounding where the mass is 0.

  Args:
    mass_BV: distributions; they need not be normalised.
    uniform_B: in [0, 1).

  Returns:
    Tokens, int32 [B].
  """
  has_mass_BV = mass_BV > 0
  cumulative_BV = jnp.cumsum(mass_BV, axis=-1)
  passes_BV = has_mass_BV & (
    cumulative_BV > uniform_B[:, None] * cumulative_BV[:, -1:]
  )
  # The product may round up to the whole mass, which nothing passes.
  last_B = mass_BV.shape[-1] - 1 - jnp.argmax(has_mass_BV[:, ::-1], axis=-1)
  return jnp.where(
    jnp.any(passes_BV, axis=-1), jnp.argmax(passes_BV, axis=-1), last_B
  ).astype(jnp.int32)


def sample(
  tree: Tree,
  tokens_BQ: jax.Array,
  conditionals: Conditionals,
  uniform_BQ: jax.Array,
  uniform_B: jax.Array,
) -> Verdict:
  """Walks the tree by independent coins and draws one token after it.

  At every node the first child in rank order whose uniform is below its
  probability is taken; strictly below, for a uniform can be 0.

  Args:
    tree: the tree.
    tokens_BQ: token of each node.
    conditionals: what a verifier made of them.
    uniform_BQ: the coins, independent, in [0, 1); that of the root is unused.
    uniform_B: draws the last token; independent of the coins.

  Returns:
    A `Verdict`.
  """
  parents_Q, ranks_Q = np.array(tree.parents), np.array(tree.ranks)
  # [q, k]: k is a sibling of q, and its coin is tossed before.
  earlier_QQ = (parents_Q[:, None] == parents_Q) & (ranks_Q[:, None] > ranks_Q)
  earlier_QQ[:, 0] = False  # the root is its own parent, and no sibling
  heads_BQ = uniform_BQ < conditionals.accept_BQ
  is_first_BQ = ~jnp.any(heads_BQ[:, None, :] & earlier_QQ, axis=-1)
  deepest_B = deepest(tree, heads_BQ & is_first_BQ)
  last_BV = jnp.take_along_axis(
    conditionals.emit_BQV, deepest_B[:, None, None], axis=1
  )[:, 0]
  emitted_B = inverse_cdf(last_BV, uniform_B).astype(tokens_BQ.dtype)
  path_BJ = jnp.asarray(tree.paths_QJ)[deepest_B]
  n_tokens_B = jnp.asarray(tree.depth_Q)[deepest_B] + 1
  # Each node commits the token of the next one, the last node the new token.
  drafts_BJ = jnp.take_along_axis(
    tokens_BQ, jnp.roll(path_BJ, -1, axis=1), axis=1
  )
  is_draft_BJ = jnp.arange(path_BJ.shape[1]) < n_tokens_B[:, None] - 1
  return Verdict(
    path_BJ,
    jnp.where(is_draft_BJ, drafts_BJ, emitted_B[:, None]),
    n_tokens_B,
  )
