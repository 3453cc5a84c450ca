"""Named tensors in files, read part by part."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np


class Tensors(Protocol):
  """Named tensors of some file or folder.

  Attributes:
    source: the file or folder, for errors.
  """

  source: str

  def names(self) -> Sequence[str]:
    """Returns the names of all tensors."""

  def shape(self, name: str) -> tuple[int, ...]:
    """Returns the shape of a tensor as it is stored."""

  def read(
    self, name: str, rows: slice = slice(None), columns: slice = slice(None)
  ) -> np.ndarray:
    """Reads a part of a tensor, in a floating dtype.

    Args:
      name: one of `names`.
      rows: of the first axis.
      columns: of the second axis, where there is one.

    Returns:
      The part, in the dtype it is stored in (or comes out of dequantisation).

    Raises:
      UserError: the file is damaged, or the tensor holds no such numbers.
    """


def are_equal(tensors: Tensors, a: str, b: str) -> bool:
  """Returns whether two tensors are the same, read a few ten MB at a time."""
  if tensors.shape(a) != tensors.shape(b):
    return False
  rows, n_rows = 4096, tensors.shape(a)[0]
  parts = (slice(start, start + rows) for start in range(0, n_rows, rows))
  return all(
    np.array_equal(tensors.read(a, part), tensors.read(b, part))
    for part in parts
  )
