"""Arrays without elements in a state, which the store beneath cannot hold.

In a checkpoint such a leaf is a node with one number in it, whose name is the
dtype and shape: {"bias": {"empty float32 0x3": 0}}. So the comparison of trees
sees them.
"""

from typing import Any

import jax
import numpy as np


def take_out(tree: Any) -> Any:
  """Returns the tree as it is stored; works on abstract trees, too."""
  return jax.tree.map(_stored, tree)


def put_back(stored: Any, tree: Any) -> Any:
  """Returns what was read with its empty leaves.

  Args:
    stored: read from a checkpoint, of the structure `take_out(tree)`.
    tree: the tree asked for, with shapes, dtypes and shardings.
  """
  return jax.tree.map(
    lambda leaf, found: _empty(leaf) if _is_empty(leaf) else found,
    tree,
    stored,
  )


def _is_empty(leaf: Any) -> bool:
  return 0 in np.shape(leaf)


def _stored(leaf: Any) -> Any:
  if not _is_empty(leaf):
    return leaf
  name = f"empty {leaf.dtype} {'x'.join(map(str, np.shape(leaf)))}"
  return {name: np.zeros((), np.int8)}


def _empty(leaf: Any) -> Any:
  if leaf.sharding is None:
    return jax.numpy.zeros(leaf.shape, leaf.dtype)
  zeros = jax.jit(
    lambda: jax.numpy.zeros(leaf.shape, leaf.dtype),
    out_shardings=leaf.sharding,
  )
  return zeros()
