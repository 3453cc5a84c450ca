"""Safetensors, read part by part and written tensor by tensor.

The `safetensors` library reads; to write it would want all tensors of a file in
memory. A file is the length of its header (8 bytes, little-endian), the header
(JSON: dtype, shape and offsets by name), the data.
"""

import functools
import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from mtpjax.checkpoint.convert.disassemble import StoredTensor
from mtpjax.errors import UserError

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_FLOATS = ("F64", "F32", "F16", "BF16")
_DTYPES = {
  "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16",
}  # fmt: skip


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


def write_folder(
  folder: pathlib.Path,
  tensors: Sequence[StoredTensor],
  dtype: str,
  max_shard_bytes: int,
  on_written: Callable[[int], None] = lambda n_values: None,
) -> None:
  """Writes model.safetensors, or shards of it and their index.

  Args:
    folder: where; it exists.
    tensors: in the order they are written in.
    dtype: to write them in.
    max_shard_bytes: the most bytes of tensors in a file; a larger tensor has a
      file of its own.
    on_written: called with the number of values written so far.
  """
  width = jnp.dtype(dtype).itemsize
  shards = _shards(tensors, max_shard_bytes // width)
  names = [_SINGLE]
  if len(shards) > 1:
    n = len(shards)
    names = [f"model-{i + 1:05}-of-{n:05}.safetensors" for i in range(n)]
    weight_map = {
      tensor.name: name
      for name, shard in zip(names, shards, strict=True)
      for tensor in shard
    }
    size = width * sum(tensor.size() for tensor in tensors)
    index = {"metadata": {"total_size": size}, "weight_map": weight_map}
    text = json.dumps(index, indent=2) + "\n"
    (folder / _INDEX).write_text(text, encoding="utf-8")
  n_before = 0
  for name, shard in zip(names, shards, strict=True):
    tell = functools.partial(_tell_sum, on_written, n_before)
    write_file(folder / name, shard, dtype, tell)
    n_before += sum(tensor.size() for tensor in shard)


def _tell_sum(tell: Callable[[int], None], before: int, n_values: int) -> None:
  tell(before + n_values)


def write_file(
  path: pathlib.Path,
  tensors: Sequence[StoredTensor],
  dtype: str,
  on_written: Callable[[int], None] = lambda n_values: None,
) -> None:
  """Writes tensors to one file; see `write_folder`."""
  header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
  end = 0
  for tensor in tensors:
    start, end = end, end + tensor.size() * jnp.dtype(dtype).itemsize
    header[tensor.name] = {
      "dtype": _DTYPES[dtype],
      "shape": tensor.shape,
      "data_offsets": (start, end),
    }
  text = json.dumps(header, separators=(",", ":")).encode()
  text += b" " * (-len(text) % 8)  # the data begins aligned
  n_written = 0
  with path.open("wb") as file:
    file.write(len(text).to_bytes(8, "little"))
    file.write(text)
    for tensor in tensors:
      values = tensor.read(jnp.dtype(dtype))
      file.write(values.reshape(-1).view(np.uint8).data)
      n_written += tensor.size()
      on_written(n_written)


def _shards(
  tensors: Sequence[StoredTensor], most: int
) -> list[list[StoredTensor]]:
  """Cuts the list so that each part has at most so many values."""
  shards: list[list[StoredTensor]] = [[]]
  room = most
  for tensor in tensors:
    if shards[-1] and tensor.size() > room:
      shards.append([])
      room = most
    shards[-1].append(tensor)
    room -= tensor.size()
  return shards
