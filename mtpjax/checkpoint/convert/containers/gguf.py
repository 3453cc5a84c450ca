"""The container format of GGUF files, versions 2 and 3.

A header of typed fields and of tensor places, then the tensors. It is read here
rather than by the `gguf` library, whose reader takes seconds for a vocabulary
and does not notice a file that ends too soon; the types and the arithmetic of
quantised blocks are the library's.
"""

import dataclasses
import math
import pathlib
import struct
from typing import Any

import numpy as np

from mtpjax.config.published import Fields
from mtpjax.errors import UserError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
# The numeric types of a field, by number.
_SCALARS = {
  0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4",
  7: "?", 10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
_MOST_DIMENSIONS = 4


@dataclasses.dataclass(frozen=True)
class StoredTensor:
  """Where a tensor lies.

  Attributes:
    kind: name of its type: "F32", "Q8_0" and so on.
    number: that type's number, for the library.
    shape: sizes, rows first (the file has them the other way round).
    blocks: its bytes, [..., bytes of a row], a view of the file.
  """

  kind: str
  number: int
  shape: tuple[int, ...]
  blocks: np.ndarray


@dataclasses.dataclass(frozen=True)
class Container:
  """What a GGUF file holds.

  Attributes:
    path: the file.
    fields: its metadata; strings, numbers, and lists or arrays of them.
    tensors: its tensors by name.
  """

  path: pathlib.Path
  fields: dict[str, Any]
  tensors: dict[str, StoredTensor]

  def read(self, prefix: str = "") -> Fields:
    """Returns the fields, or those whose names begin with a prefix."""
    return Fields(
      self.fields,
      str(self.path),
      "convert the model to GGUF again, or give its Hugging Face folder",
      prefix,
    )


def require_library(path: pathlib.Path) -> Any:
  """Imports the `gguf` library; UserError with the way out without it."""
  try:
    import gguf
  except ImportError as error:
    raise UserError(
      f"{path}: GGUF files need the library gguf; pip install 'mtpjax[gguf]'"
    ) from error
  return gguf


def read_container(path: pathlib.Path) -> Container:
  """Reads the header of a file, and maps the rest of it.

  Args:
    path: a GGUF file.

  Returns:
    Its fields, and its tensors as views of the file.

  Raises:
    UserError: no such file, not GGUF, damaged, cut off, or no `gguf` library.
  """
  gguf = require_library(path)
  if path.is_dir():
    raise UserError(
      f"{path}: is a folder; give the path of a .gguf file, or use `mtpjax "
      "convert hf` for a Hugging Face folder"
    )
  if not path.is_file():
    raise UserError(f"{path}: no such file; give the path of a .gguf file")
  if path.stat().st_size < 24:
    raise UserError(f"{path}: not a GGUF file, or cut off; copy it again")
  cursor = _Cursor(path)
  if bytes(cursor.take(4, "magic number")) != _MAGIC:
    raise UserError(
      f"{path}: not a GGUF file (it does not begin with GGUF); give a .gguf "
      "file, or use `mtpjax convert hf` for a Hugging Face folder"
    )
  version = cursor.number("<I", "version")
  if version not in _VERSIONS:
    swapped = " of the other byte order" if version & 0xFFFF == 0 else ""
    raise UserError(
      f"{path}: GGUF version {version}{swapped} is not read, only "
      f"{' and '.join(map(str, _VERSIONS))}; convert the model again"
    )
  n_tensors = cursor.number("<Q", "number of tensors")
  n_fields = cursor.number("<Q", "number of fields")
  fields: dict[str, Any] = {}
  for i in range(n_fields):
    key = cursor.text(f"field {i}")
    if key in fields:
      raise cursor.damaged(f"the field {key} is there twice")
    fields[key] = cursor.value(cursor.number("<I", key), key)
  places = [_place(cursor, gguf, i) for i in range(n_tensors)]
  alignment = fields.get("general.alignment", 32)
  if not isinstance(alignment, int) or alignment < 1:
    raise cursor.damaged(f"general.alignment is {alignment!r}")
  start = -(-cursor.offset // alignment) * alignment
  tensors: dict[str, StoredTensor] = {}
  for name, kind, shape, row_bytes, offset in places:
    if name in tensors:
      raise cursor.damaged(f"the tensor {name} is there twice")
    begin = start + offset
    end = begin + math.prod(shape[:-1]) * row_bytes
    if end > len(cursor.data):
      raise UserError(
        f"{path}: cut off: the tensor {name} ends at byte {end}, the file at "
        f"{len(cursor.data)}; copy it again"
      )
    blocks = cursor.data[begin:end].reshape(*shape[:-1], row_bytes)
    tensors[name] = StoredTensor(kind.name, int(kind), shape, blocks)
  return Container(path, fields, tensors)


class GgufTensors:
  """Tensors of a GGUF file, dequantised to float32 as they are read."""

  def __init__(self, container: Container):
    """Wraps the tensors of an opened file."""
    self.source = str(container.path)
    self._tensors = container.tensors
    self._gguf = require_library(container.path)
    # What was read last: devices cut one tensor along its columns in turn.
    self._last: tuple[Any, np.ndarray] | None = None

  def names(self) -> list[str]:
    """Returns the names of all tensors."""
    return list(self._tensors)

  def shape(self, name: str) -> tuple[int, ...]:
    """Returns the shape of a tensor, rows first."""
    return self._tensors[name].shape

  def read(
    self, name: str, rows: slice = slice(None), columns: slice = slice(None)
  ) -> np.ndarray:
    """Dequantises some rows of a tensor; see `Tensors.read`."""
    stored = self._tensors[name]
    if len(stored.shape) == 1:
      # One row: there is nothing to leave out before the end.
      return self._dequantise(name, slice(None))[rows]
    return self._dequantise(name, rows)[:, columns]

  def _dequantise(self, name: str, rows: slice) -> np.ndarray:
    key = (name, rows.start, rows.stop, rows.step)
    if self._last is None or self._last[0] != key:
      self._last = None  # frees it before the next is made
      stored = self._tensors[name]
      kind = self._gguf.GGMLQuantizationType(stored.number)
      blocks = np.ascontiguousarray(
        stored.blocks[rows] if stored.blocks.ndim > 1 else stored.blocks
      )
      # Scales of a damaged block can be anything.
      with np.errstate(all="ignore"):
        values = self._gguf.dequantize(blocks, kind)
      if not np.isfinite(values).all():
        raise UserError(
          f"{self.source}: damaged: the tensor {name} holds values that are "
          "not finite; copy the file again"
        )
      self._last = (key, values)
    return self._last[1]


class _Cursor:
  """Reads a mapped file from its beginning; never past its end."""

  def __init__(self, path: pathlib.Path):
    self.path = path
    try:
      self.data = np.memmap(path, np.uint8, mode="r").view(np.ndarray)
    except OSError as error:
      raise UserError(
        f"{path}: cannot be read ({error.strerror}); check its permissions"
      ) from error
    self.offset = 0

  def damaged(self, what: str) -> UserError:
    return UserError(f"{self.path}: damaged: {what}; copy it again")

  def take(self, n: int, what: str) -> np.ndarray:
    if n > len(self.data) - self.offset:
      raise UserError(
        f"{self.path}: cut off or damaged: {what} needs {n} bytes from byte "
        f"{self.offset} on, the file has {len(self.data)}; copy it again"
      )
    taken = self.data[self.offset : self.offset + n]
    self.offset += n
    return taken

  def number(self, layout: str, what: str) -> int:
    taken = self.take(struct.calcsize(layout), what)
    return struct.unpack(layout, taken.data)[0]

  def text(self, what: str) -> str:
    raw = bytes(self.take(self.number("<Q", what), what))
    try:
      return raw.decode("utf-8")
    except UnicodeDecodeError as error:
      raise self.damaged(f"{what} is not UTF-8") from error

  def value(self, kind: int, key: str) -> Any:
    if kind == _STRING:
      return self.text(key)
    if kind in _SCALARS:
      dtype = np.dtype(_SCALARS[kind])
      return self.take(dtype.itemsize, key).view(dtype)[0].item()
    if kind != _ARRAY:
      raise self.damaged(f"the field {key} has the unknown type {kind}")
    of = self.number("<I", key)
    n = self.number("<Q", key)
    if of == _STRING:
      return [self.text(key) for _ in range(n)]
    if of not in _SCALARS:
      raise self.damaged(f"the field {key} is a list of the unknown type {of}")
    dtype = np.dtype(_SCALARS[of])
    return self.take(n * dtype.itemsize, key).view(dtype)


def _place(
  cursor: _Cursor, gguf: Any, i: int
) -> tuple[str, Any, tuple[int, ...], int, int]:
  """Reads where a tensor lies: name, type, shape, bytes a row, offset."""
  name = cursor.text(f"tensor {i}")
  n_dimensions = cursor.number("<I", name)
  if not 1 <= n_dimensions <= _MOST_DIMENSIONS:
    raise cursor.damaged(f"the tensor {name} has {n_dimensions} dimensions")
  reversed_shape = [cursor.number("<Q", name) for _ in range(n_dimensions)]
  shape = tuple(reversed(reversed_shape))
  number = cursor.number("<I", name)
  offset = cursor.number("<Q", name)
  try:
    kind = gguf.GGMLQuantizationType(number)
  except ValueError as error:
    raise UserError(
      f"{cursor.path}: the tensor {name} has type {number}, which the "
      "installed gguf library does not know; upgrade it, or copy the file again"
    ) from error
  block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
  if min(shape) < 1 or shape[-1] % block:
    raise cursor.damaged(
      f"the tensor {name} has shape {shape}, whose rows are no whole blocks "
      f"of {block} ({kind.name})"
    )
  return name, kind, shape, shape[-1] // block * block_bytes, offset
