"""Named tensors in files, read part by part."""

import json
import pathlib
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from mtpjax.errors import UserError

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_FLOATS = ("F64", "F32", "F16", "BF16")


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


class Safetensors:
  """A safetensors file, or a folder of one or of shards with an index."""

  def __init__(self, path: str | pathlib.Path):
    """Reads the headers.

    Args:
      path: a *.safetensors file, or a folder with model.safetensors or with
        model.safetensors.index.json and the files it names.

    Raises:
      UserError: no such files, or a header is damaged.
    """
    path = pathlib.Path(path)
    self.source = str(path)
    self._file_of: dict[str, Any] = {}
    self._path_of: dict[str, pathlib.Path] = {}
    single, index = path / _SINGLE, path / _INDEX
    if path.is_file():
      self._add(path, _open(path))
    elif single.is_file():
      self._add(single, _open(single))
    elif index.is_file():
      self._add_shards(index)
    else:
      raise UserError(f"{path}: {_what_is_missing(path)}")

  def names(self) -> Sequence[str]:
    """Returns the names of all tensors."""
    return list(self._file_of)

  def files(self) -> list[pathlib.Path]:
    """Returns the files that hold the tensors."""
    return sorted(set(self._path_of.values()))

  def shape(self, name: str) -> tuple[int, ...]:
    """Returns the shape of a tensor as it is stored."""
    return tuple(self._file_of[name].get_slice(name).get_shape())

  def read(
    self, name: str, rows: slice = slice(None), columns: slice = slice(None)
  ) -> np.ndarray:
    """Reads a part of a tensor; see `Tensors.read`."""
    stored = self._file_of[name].get_slice(name)
    if stored.get_dtype() not in _FLOATS:
      raise UserError(
        f"{self._path_of[name]}: {name} is of dtype {stored.get_dtype()}, not "
        f"one of {', '.join(_FLOATS)}; convert the unquantised checkpoint"
      )
    # The library takes no slice that ends beyond the axis.
    cut = tuple(
      slice(*wanted.indices(size))
      for wanted, size in zip((rows, columns), stored.get_shape(), strict=False)
    )
    return np.asarray(stored[cut])

  def _add(self, path: pathlib.Path, file: Any) -> None:
    for name in file.keys():  # noqa: SIM118 - it is no dictionary
      self._file_of[name], self._path_of[name] = file, path

  def _add_shards(self, index: pathlib.Path) -> None:
    try:
      weight_map = json.loads(index.read_bytes(), object_pairs_hook=_once)[
        "weight_map"
      ]
      shards = sorted(set(weight_map.values()))
      is_local = all(pathlib.PurePath(shard).name == shard for shard in shards)
    except (
      OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError,
    ) as error:  # fmt: skip
      raise UserError(
        f"{index}: is not the index of a sharded checkpoint; copy it again"
      ) from error
    if not is_local:
      raise UserError(f"{index}: names files outside of its folder")
    for shard in shards:
      path = index.parent / shard
      if not path.is_file():
        raise UserError(
          f"{path}: is missing, {index.name} names it; copy all files of the "
          "checkpoint"
        )
      self._add(path, _open(path))
    for name, shard in weight_map.items():
      held_by = self._path_of.get(name)
      if held_by is None or held_by.name != shard:
        raise UserError(
          f"{index.parent / shard}: holds no tensor {name}, which {index.name} "
          "says it does; copy both again"
        )


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  """Returns a JSON object; ValueError where a name is there twice."""
  found = dict(pairs)
  if len(found) < len(pairs):
    raise ValueError("a name is there twice")
  return found


def _open(path: pathlib.Path) -> Any:
  import safetensors

  try:
    return safetensors.safe_open(path, framework="numpy")
  except (safetensors.SafetensorError, OSError) as error:
    reason = str(error).partition("\n")[0]
    raise UserError(
      f"{path}: is damaged or no safetensors file ({reason}); copy it again"
    ) from error


def _what_is_missing(path: pathlib.Path) -> str:
  if not path.exists():
    return "no such file or folder"
  if list(path.glob("*.bin")) or list(path.glob("*.pth")):
    return (
      f"has no {_SINGLE}, only pickled weights, which are not read; save them "
      "with save_pretrained(..., safe_serialization=True)"
    )
  return f"has neither {_SINGLE} nor {_INDEX}"
