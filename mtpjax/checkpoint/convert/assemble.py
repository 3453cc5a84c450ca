"""Stored tensors into a tree of sharded arrays, each part read alone.

Axes of stacked leaves: L layers or heads, then those of one.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from mtpjax import parallel
from mtpjax.checkpoint.convert.containers.tensors import Tensors
from mtpjax.checkpoint.convert.layout import (
  Leaf,
  rows_from_pairs,
  shape_of_one,
  stored_shape,
)
from mtpjax.errors import UserError

_LISTED = 10


def _tell_nobody(n_values: int) -> None:
  del n_values


def _is_never_ignored(name: str) -> bool:
  del name
  return False


def assemble(
  boxes: Any,
  leaves: Sequence[Leaf],
  tensors: Tensors,
  mesh: jax.sharding.Mesh,
  ignored: Callable[[str], bool] = _is_never_ignored,
  on_read: Callable[[int], None] = _tell_nobody,
) -> Any:
  """Reads all parameters of a tree, after checking names and shapes.

  Args:
    boxes: of `MultiTokenModel.abstract()["lm"]` or ["heads"].
    leaves: one for each parameter of the tree.
    tensors: where they are stored.
    mesh: where they will live.
    ignored: tensors that need not be used.
    on_read: called with the number of values read so far.

  Returns:
    The tree of arrays, in the dtypes and with the shardings of the boxes.

  Raises:
    UserError: tensors are missing, not used, of another shape, or damaged.
  """
  abstract = parallel.abstract_arrays(boxes, mesh)
  flat, structure = jax.tree_util.tree_flatten_with_path(abstract)
  wanted = {
    jax.tree_util.keystr(path, simple=True, separator="/"): array
    for path, array in flat
  }
  by_path = {leaf.path: leaf for leaf in leaves}
  assert len(by_path) == len(leaves), "a parameter has two leaves"
  assert by_path.keys() == wanted.keys(), by_path.keys() ^ wanted.keys()
  _check(wanted, by_path, tensors, ignored)
  arrays, n_read = [], 0
  for path, array in wanted.items():

    def tell(n_values: int, before: int = n_read) -> None:
      on_read(before + n_values)

    arrays.append(_read_leaf(by_path[path], array, tensors, tell))
    n_read += array.size
  on_read(n_read)
  return jax.tree.unflatten(structure, arrays)


def _check(
  wanted: dict[str, jax.ShapeDtypeStruct],
  by_path: dict[str, Leaf],
  tensors: Tensors,
  ignored: Callable[[str], bool],
) -> None:
  """Raises one UserError for all tensors that do not fit."""
  there = set(tensors.names())
  problems, used = [], set()
  for path, array in wanted.items():
    shape = stored_shape(by_path[path], array.shape)
    for name in by_path[path].names(array.shape):
      assert name not in used, f"{name} is used twice"
      used.add(name)
      if name not in there:
        problems.append(f"{name} is missing")
      elif tensors.shape(name) != shape:
        problems.append(
          f"{name} is {list(tensors.shape(name))}, expected {list(shape)}"
        )
  problems += [
    f"{name} belongs to no parameter"
    for name in sorted(there - used)
    if not ignored(name)
  ]
  if problems:
    more = len(problems) - _LISTED
    listed = "; ".join(problems[:_LISTED])
    raise UserError(
      f"{tensors.source}: does not hold the model its configuration "
      f"describes: {listed}{f'; and {more} more' if more > 0 else ''}"
    )


def _read_leaf(
  leaf: Leaf,
  array: jax.ShapeDtypeStruct,
  tensors: Tensors,
  on_read: Callable[[int], None],
) -> jax.Array:
  names = leaf.names(array.shape)
  n_read = 0
  one_shape = array.shape[1:] if leaf.is_stacked else array.shape
  # Devices that hold the same part share one reading of it.
  parts: dict[tuple[tuple[int, int], ...], np.ndarray] = {}

  def read(index: tuple[slice, ...] | None) -> np.ndarray:
    nonlocal n_read
    assert index is not None
    bounds = tuple(
      s.indices(size)[:2] for s, size in zip(index, array.shape, strict=True)
    )
    if bounds not in parts:
      one = bounds[1:] if leaf.is_stacked else bounds
      which = range(*bounds[0]) if leaf.is_stacked else range(1)
      part = np.empty([stop - start for start, stop in bounds], array.dtype)
      target = part if leaf.is_stacked else part[None]
      rows, columns = _rows_and_columns(leaf, one, one_shape)
      for slot, i in enumerate(which):
        stored = tensors.read(names[i], rows, columns)
        with np.errstate(over="ignore"):  # what does not fit is found below
          target[slot] = _to_ours(leaf, stored, target.shape[1:], one_shape)
        n_read += target[slot].size
        on_read(min(n_read, array.size))
        if not np.isfinite(target[slot]).all():
          raise UserError(
            f"{tensors.source}: the tensor {names[i]} holds values that are "
            f"not finite in {array.dtype}; copy the file again"
          )
      parts[bounds] = part
    return parts[bounds]

  return jax.make_array_from_callback(array.shape, array.sharding, read)


def _rows_and_columns(
  leaf: Leaf, bounds: Sequence[tuple[int, int]], shape: Sequence[int]
) -> tuple[slice, slice]:
  """Returns the rows and columns that a part of ours is stored in."""
  if leaf.is_flat:
    return (_merged(bounds, shape), slice(None))
  n = leaf.n_in
  if n:
    return (_merged(bounds[n:], shape[n:]), _merged(bounds[:n], shape[:n]))
  cuts = [slice(start, stop) for start, stop in bounds]
  return (cuts[0], cuts[1] if len(cuts) > 1 else slice(None))


def _merged(bounds: Sequence[tuple[int, int]], shape: Sequence[int]) -> slice:
  """Returns the part of axes stored as one; only the first may be cut."""
  whole = [(0, size) for size in shape[1:]]
  assert list(bounds[1:]) == whole, (bounds, shape)
  step = math.prod(shape[1:])
  return slice(bounds[0][0] * step, bounds[0][1] * step)


def _to_ours(
  leaf: Leaf,
  stored: np.ndarray,
  part_shape: Sequence[int],
  shape: tuple[int, ...],
) -> np.ndarray:
  """Turns a part of a tensor into the part of ours, of `part_shape`."""
  if leaf.pairs:
    # Heads are cut whole, so those of a part are its share of all heads.
    rows = shape_of_one(leaf, shape)[0]
    stored = rows_from_pairs(stored, leaf.pairs * stored.shape[0] // rows)
  if leaf.n_in:
    stored = stored.T
  return stored.reshape(part_shape)
