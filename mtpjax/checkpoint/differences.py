"""One readable table of what a checkpoint has and what is asked of it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_ROWS = 30  # a wholly different model differs in every leaf, three times over


def table(stored: Any, asked: Any, partial: bool) -> str:
  """Compares two trees by the names, shapes and dtypes of their leaves.

  Args:
    stored: the tree in the checkpoint; leaves have a shape and a dtype.
    asked: the tree to restore into; leaves have a shape and a dtype.
    partial: leaves that only `stored` has are no difference.

  Returns:
    The table, a line per leaf that differs; "" if none does.
  """
  have, want = _describe(stored), _describe(asked)
  names = sorted(want if partial else have | want)
  rows = [
    (_verdict(have.get(name), want.get(name)), name, have.get(name, "-"),
     want.get(name, "-"))
    for name in names
    if have.get(name) != want.get(name)
  ]  # fmt: skip
  if not rows:
    return ""
  shown = [("", "name", "in the checkpoint", "asked for"), *rows[:_ROWS]]
  widths = [max(len(row[column]) for row in shown) for column in range(4)]
  lines = [
    "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True))
    for row in shown
  ]
  if len(rows) > _ROWS:
    lines.append(f"... and {len(rows) - _ROWS} more")
  return "\n".join(f"  {line}".rstrip() for line in lines)


def _verdict(have: str | None, want: str | None) -> str:
  if have is None:
    return "missing"
  if want is None:
    return "extra"
  shape = have.partition("[")[2] != want.partition("[")[2]
  dtype = have.partition("[")[0] != want.partition("[")[0]
  return " and ".join(["shape"] * shape + ["dtype"] * dtype)


def _describe(tree: Any) -> dict[str, str]:
  """Returns for example {"params/lm/norm": "float32[256]"}.

  Nodes without leaves (None, {}, optax's EmptyState) count as leaves "empty
  []": a checkpoint stores them, and which of them they were is forgotten.
  """
  leaves = jax.tree_util.tree_leaves_with_path(
    tree, is_leaf=lambda node: not jax.tree.leaves(node)
  )
  return {
    jax.tree_util.keystr(path, simple=True, separator="/"): _text(leaf)
    for path, leaf in leaves
  }


def _text(leaf: Any) -> str:
  if not jax.tree.leaves(leaf):
    return "empty[]"
  dtype = getattr(leaf, "dtype", None)
  if dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key):
    # A typed key is stored as its bits.
    bare = jax.ShapeDtypeStruct(leaf.shape, dtype)
    leaf = jax.eval_shape(jax.random.key_data, bare)
  dtype = np.result_type(leaf) if dtype is None else leaf.dtype
  return f"{dtype}[{','.join(map(str, np.shape(leaf)))}]"
