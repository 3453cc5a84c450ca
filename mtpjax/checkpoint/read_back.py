"""Is what was saved readable? Asked without reading the values."""

import os
import pathlib
from typing import Any

import tensorstore
from orbax.checkpoint import v1 as ocp

from mtpjax.checkpoint import differences

# Each process writes files of its own, which are merged at the end.
_PART = "ocdbt.process_"


def metadata(path: pathlib.Path, item: str) -> Any:
  """Reads the tree of a checkpoint: shapes and dtypes by name.

  Args:
    path: the step's folder.
    item: what it is called there.

  Returns:
    Orbax's metadata, the tree in `metadata`.

  Raises:
    ValueError: it has none that is readable. Also what Orbax raises.
  """
  found = ocp.metadata(path, checkpointable_name=item)
  if found.metadata is None:
    raise ValueError("its tree is not readable")
  return found


def require(path: pathlib.Path, item: str, tree: Any) -> None:
  """Checks that a checkpoint holds a tree, and all that processes wrote.

  Args:
    path: the step's folder, just written.
    item: what it is called there.
    tree: what was saved; leaves have a shape and a dtype.

  Raises:
    ValueError: it does not. Also what Orbax and TensorStore raise.
  """
  found = metadata(path, item)
  if differences.table(found.metadata, tree, partial=False):
    raise ValueError("read back, it holds another tree than was saved")
  folder = path / item
  merged = _keys(folder)
  for part in os.listdir(folder):
    if part.startswith(_PART) and _keys(folder / part) - merged:
      raise ValueError(f"read back, it lacks values of {part}")


def _keys(folder: pathlib.Path) -> set[bytes]:
  base = {"driver": "file", "path": f"{folder}/"}
  spec = {"driver": "ocdbt", "base": base}
  return set(tensorstore.KvStore.open(spec).result().list().result())
