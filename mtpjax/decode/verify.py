"""Which drafts stand, and where the block they form must end."""

import jax
import jax.numpy as jnp
from flax import struct

from mtpjax.decode.tree import Tree

RUNNING, EOS, LENGTH = 0, 1, 2
FINISH_REASONS = ("running", "eos", "length")


class Verdict(struct.PyTreeNode):
  """The accepted path of each row.

  Attributes:
    path_BJ: its nodes, root first; the last one is repeated.
    tokens_BJ: the tokens it commits: the target behind each node.
    n_tokens_B: how many of them count, before truncation.
  """

  path_BJ: jax.Array
  tokens_BJ: jax.Array
  n_tokens_B: jax.Array


def verify(tree: Tree, tokens_BQ: jax.Array, targets_BQ: jax.Array) -> Verdict:
  """Walks the tree while the target is one of the children.

  The same for greedy decoding and for coupled noise: a node stands if its
  token is the target behind its parent and its parent stands. The first
  target that is no child is committed too, as the last token of the block.

  Args:
    tree: the tree.
    tokens_BQ: token of each node.
    targets_BQ: token the model chooses behind each node.

  Returns:
    A `Verdict`.
  """
  parents_Q = jnp.asarray(tree.parents)
  matches_BQ = tokens_BQ == targets_BQ[:, parents_Q]
  matches_BQ = matches_BQ.at[:, 0].set(True)
  stands_BQ = jnp.all(
    matches_BQ[:, None, :] | ~jnp.asarray(tree.ancestors_QQ), axis=-1
  )
  depth_Q = jnp.asarray(tree.depth_Q)
  deepest_B = jnp.argmax(jnp.where(stands_BQ, depth_Q, -1), axis=-1)
  path_BJ = jnp.asarray(tree.paths_QJ)[deepest_B]
  return Verdict(
    path_BJ,
    jnp.take_along_axis(targets_BQ, path_BJ, axis=1),
    depth_Q[deepest_B] + 1,
  )


def truncate(
  tokens_BJ: jax.Array,
  n_tokens_B: jax.Array,
  eos_ids_E: jax.Array,
  budget_B: jax.Array,
  finish_B: jax.Array,
) -> tuple[jax.Array, jax.Array]:
  """Cuts a block at the first EOS and at the budget.

  Args:
    tokens_BJ: the block.
    n_tokens_B: its length.
    eos_ids_E: ids that end a text; -1 matches nothing.
    budget_B: tokens that may still be committed.
    finish_B: RUNNING, EOS or LENGTH; rows that don't run commit nothing.

  Returns:
    Tokens to commit, the EOS included, and the new finish_B.
  """
  j = tokens_BJ.shape[1]
  is_eos_BJ = jnp.any(tokens_BJ[..., None] == eos_ids_E, axis=-1)
  first_eos_B = jnp.where(
    jnp.any(is_eos_BJ, axis=-1), jnp.argmax(is_eos_BJ, axis=-1) + 1, j + 1
  )
  n_B = jnp.minimum(n_tokens_B, jnp.minimum(first_eos_B, budget_B))
  is_running_B = finish_B == RUNNING
  n_B = jnp.where(is_running_B, n_B, 0)
  reason_B = jnp.where(
    first_eos_B <= n_B, EOS, jnp.where(n_B == budget_B, LENGTH, RUNNING)
  )
  return n_B, jnp.where(is_running_B, reason_B, finish_B)
