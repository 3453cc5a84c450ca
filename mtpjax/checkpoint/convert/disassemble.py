"""Parameters as tensors of another format: the way back from `assemble`."""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np

from mtpjax.checkpoint.convert.layout import Leaf, stored_shape


@dataclasses.dataclass(frozen=True)
class StoredTensor:
  """A tensor to be written, taken from a parameter when its turn comes.

  Attributes:
    name: of the tensor.
    shape: as it is stored.
    leaf: how the parameter is stored.
    array: the parameter.
    index: of the first axis of a stacked one.
  """

  name: str
  shape: tuple[int, ...]
  leaf: Leaf
  array: jax.Array
  index: int = 0

  def size(self) -> int:
    """Returns the number of values."""
    return math.prod(self.shape)

  def read(self, dtype: Any) -> np.ndarray:
    """Returns the values as they are stored."""
    # One layer comes to the host at a time.
    one = self.array[self.index] if self.leaf.is_stacked else self.array
    ours = np.asarray(one)
    if self.leaf.n_in:
      ours = ours.reshape(self.shape[::-1]).T
    return np.ascontiguousarray(ours.reshape(self.shape), dtype)


def by_path(params: Any) -> dict[str, jax.Array]:
  """Returns the arrays of a tree by their paths, "layers/mlp/up/kernel"."""
  return {
    jax.tree_util.keystr(path, simple=True, separator="/"): array
    for path, array in jax.tree_util.tree_leaves_with_path(params)
  }


def disassemble(leaves: Sequence[Leaf], params: Any) -> list[StoredTensor]:
  """Lists the tensors that hold a tree of parameters.

  Args:
    leaves: one for each parameter of the tree; none in rotary pairs.
    params: the tree of arrays, sharded or not.

  Returns:
    The tensors: those of the first leaf if it is not stacked, then layer by
    layer (or head by head), then the others that are not stacked.
  """
  arrays = by_path(params)
  assert arrays.keys() == {leaf.path for leaf in leaves}
  assert not any(leaf.pairs for leaf in leaves), "pairs are only read"
  outer: list[StoredTensor] = []
  stacked: list[StoredTensor] = []
  for leaf in leaves:
    found = _tensors_of(leaf, arrays[leaf.path])
    (stacked if leaf.is_stacked else outer).extend(found)
  stacked.sort(key=lambda tensor: tensor.index)
  return [*outer[:1], *stacked, *outer[1:]]


def _tensors_of(leaf: Leaf, array: jax.Array) -> Iterable[StoredTensor]:
  shape = stored_shape(leaf, array.shape)
  for i, name in enumerate(leaf.names(array.shape)):
    yield StoredTensor(name, shape, leaf, array, i)
