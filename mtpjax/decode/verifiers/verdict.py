"""The accepted path, and the walk that finds it by equality of tokens."""

import jax
import jax.numpy as jnp
from flax import struct

from mtpjax.decode.tree import Tree


class Verdict(struct.PyTreeNode):
  """The accepted path of each row.

  Attributes:
    path_BJ: its nodes, root first; the last one is repeated.
    tokens_BJ: the tokens it commits: those of its drafts and one more, which
      is repeated.
    n_tokens_B: how many of them count, before truncation.
  """

  path_BJ: jax.Array
  tokens_BJ: jax.Array
  n_tokens_B: jax.Array


def deepest(tree: Tree, taken_BQ: jax.Array) -> jax.Array:
  """Returns the deepest node whose whole path is taken, the root at least.

  Args:
    tree: the tree.
    taken_BQ: nodes that are taken if their parent is; the root always is.

  Returns:
    Node ids, int32 [B].
  """
  taken_BQ = taken_BQ.at[:, 0].set(True)
  stands_BQ = jnp.all(
    taken_BQ[:, None, :] | ~jnp.asarray(tree.ancestors_QQ), axis=-1
  )
  return jnp.argmax(
    jnp.where(stands_BQ, jnp.asarray(tree.depth_Q), -1), axis=-1
  )


def match(
  tree: Tree, tokens_BQ: jax.Array, valid_BQ: jax.Array, targets_BQ: jax.Array
) -> Verdict:
  """Walks the tree while the target is one of the children.

  The same for greedy decoding and for coupled noise: a node stands if its
  token is the target after its parent and its parent stands. The first
  target that is no child is committed too, as the last token of the block.

  Args:
    tree: the tree.
    tokens_BQ: token of each node; valid siblings differ.
    valid_BQ: whether a node holds a draft. One that doesn't never stands,
      whatever its token is; the root always does.
    targets_BQ: token the model chooses after each node.

  Returns:
    A `Verdict`.
  """
  parents_Q = jnp.asarray(tree.parents)
  deepest_B = deepest(tree, valid_BQ & (tokens_BQ == targets_BQ[:, parents_Q]))
  path_BJ = jnp.asarray(tree.paths_QJ)[deepest_B]
  return Verdict(
    path_BJ,
    jnp.take_along_axis(targets_BQ, path_BJ, axis=1),
    jnp.asarray(tree.depth_Q)[deepest_B] + 1,
  )
