"""Tensors of a .pth or .pt file of PyTorch, read without PyTorch.

Such a file is an uncompressed zip archive: NAME/data.pkl, a pickle of the
tensors' names and shapes, and NAME/data/KEY, the bytes of each storage. A
pickle can call anything, so only the few functions that rebuild tensors are let
in. The storages are mapped into memory, and checked against the archive's
checksums when they are first read.
"""

import collections
import dataclasses
import io
import pathlib
import pickle
import struct
import zipfile
import zlib
from typing import Any

import jax.numpy as jnp
import numpy as np

from mtpjax.errors import UserError

_DTYPES: dict[str, np.dtype[Any]] = {
  "FloatStorage": np.dtype(np.float32),
  "HalfStorage": np.dtype(np.float16),
  "BFloat16Storage": np.dtype(jnp.bfloat16),
}
# Before PyTorch 1.6: pickles one after the other, the first a number.
_OLD_FORMAT = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_LOCAL_HEADER = struct.Struct("<26xHH")


@dataclasses.dataclass(frozen=True)
class _Storage:
  """The bytes of some tensors: key in the archive, kind, number of values."""

  key: str
  kind: str
  n_values: int


@dataclasses.dataclass(frozen=True)
class _Tensor:
  """A view of a storage; offset and strides count values."""

  storage: _Storage
  offset: int
  shape: tuple[int, ...]
  strides: tuple[int, ...]


class TorchArchive:
  """The tensors of a file written by `torch.save` of a state dict."""

  def __init__(self, path: str | pathlib.Path):
    """Reads the names and shapes.

    Args:
      path: a .pth or .pt file.

    Raises:
      UserError: no such file, of the format before PyTorch 1.6, damaged, or
        with anything but a flat dictionary of tensors in it.
    """
    self._path = pathlib.Path(path)
    self.source = str(path)
    self._members = self._open()
    self._checked: set[str] = set()
    pickled = [
      name for name in self._members if name.rpartition("/")[2] == "data.pkl"
    ]
    if len(pickled) != 1:
      raise self._damaged(f"it has {len(pickled)} data.pkl where one belongs")
    self._prefix = pickled[0].removesuffix("data.pkl")
    if self._prefix + "byteorder" in self._members:
      order = bytes(self._member(self._prefix + "byteorder", "byteorder"))
      if order != b"little":
        raise UserError(
          f"{self.source}: its byte order is {order.decode(errors='replace')}, "
          "only little is read; save it again on such a machine"
        )
    self._tensors = self._unpickle(bytes(self._member(pickled[0], "data.pkl")))

  def names(self) -> list[str]:
    """Returns the names of all tensors."""
    return list(self._tensors)

  def shape(self, name: str) -> tuple[int, ...]:
    """Returns the shape of a tensor as it is stored."""
    return self._tensors[name].shape

  def read(
    self, name: str, rows: slice = slice(None), columns: slice = slice(None)
  ) -> np.ndarray:
    """Reads a part of a tensor; see `Tensors.read`."""
    tensor = self._tensors[name]
    storage = tensor.storage
    what = f"the tensor {name}"
    dtype = _DTYPES.get(storage.kind)
    if dtype is None:
      raise UserError(
        f"{self.source}: {what} is a torch.{storage.kind}; only float32, "
        "float16 and bfloat16 are read; save it in one of these"
      )
    raw = self._member(f"{self._prefix}data/{storage.key}", what)
    width = dtype.itemsize
    if len(raw) != storage.n_values * width:
      raise self._damaged(
        f"{what} should have {storage.n_values * width} bytes of storage, not "
        f"{len(raw)}"
      )
    values = np.ndarray(
      tensor.shape,
      dtype,
      raw,
      tensor.offset * width,
      tuple(stride * width for stride in tensor.strides),
    )
    # A copy: the caller need not keep the file mapped.
    return values[(rows, columns)[: values.ndim]].copy()

  def _damaged(self, what: str) -> UserError:
    return UserError(f"{self.source}: damaged: {what}; copy it again")

  def _open(self) -> dict[str, zipfile.ZipInfo]:
    try:
      with self._path.open("rb") as file:
        begin = file.read(len(_OLD_FORMAT))
    except OSError as error:
      raise UserError(
        f"{self.source}: cannot be read ({error.strerror}); give a .pth file"
      ) from error
    if begin == _OLD_FORMAT:
      raise UserError(
        f"{self.source}: is of the format before PyTorch 1.6; load it in "
        "PyTorch, and save it again with torch.save or as safetensors"
      )
    try:
      with zipfile.ZipFile(self._path) as archive:
        members = {member.filename: member for member in archive.infolist()}
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
      raise UserError(
        f"{self.source}: no file of torch.save, or cut off ({error}); copy it "
        "again"
      ) from error
    self._bytes = np.memmap(self._path, np.uint8, mode="r").view(np.ndarray)
    return members

  def _member(self, name: str, what: str) -> np.ndarray:
    """Maps the bytes of a member; checks them when seen for the first time."""
    member = self._members.get(name)
    if member is None:
      raise self._damaged(f"{what} is missing ({name})")
    if member.compress_type != zipfile.ZIP_STORED:
      raise UserError(
        f"{self.source}: {name} is compressed, which torch.save never does; "
        "unpack the archive and save it with torch.save"
      )
    header = self._bytes[member.header_offset :][: _LOCAL_HEADER.size]
    if len(header) < _LOCAL_HEADER.size:
      raise self._damaged(f"{what} lies outside of the file")
    begin = member.header_offset + _LOCAL_HEADER.size
    begin += sum(_LOCAL_HEADER.unpack(header.tobytes()))
    raw = self._bytes[begin : begin + member.file_size]
    if len(raw) < member.file_size:
      raise self._damaged(f"{what} ends outside of the file")
    if name not in self._checked:
      if zlib.crc32(raw.data) != member.CRC:
        raise self._damaged(f"{what} does not match its checksum")
      self._checked.add(name)
    return raw

  def _unpickle(self, pickled: bytes) -> dict[str, _Tensor]:
    try:
      tree = _TensorUnpickler(io.BytesIO(pickled), self.source).load()
    except UserError:
      raise
    # A damaged pickle can raise nearly anything.
    except Exception as error:
      reason = str(error).partition("\n")[0]
      raise self._damaged(f"data.pkl is no pickle of tensors ({reason})") from (
        error
      )
    if not isinstance(tree, dict):
      raise UserError(
        f"{self.source}: holds a {type(tree).__name__}, not a dictionary of "
        "tensors; save the model's state_dict()"
      )
    for name, value in tree.items():
      if not isinstance(name, str) or not isinstance(value, _Tensor):
        raise UserError(
          f"{self.source}: {name!r} is a {type(value).__name__}, not a tensor; "
          "save the model's state_dict() alone"
        )
      self._check(name, value)
    return dict(tree)

  def _check(self, name: str, tensor: _Tensor) -> None:
    """Raises if the view reaches out of its storage."""
    numbers = (tensor.offset, *tensor.shape, *tensor.strides)
    sound = len(tensor.shape) == len(tensor.strides) and all(
      type(n) is int and n >= 0 for n in (*numbers, tensor.storage.n_values)
    )
    if sound and all(tensor.shape):
      steps = zip(tensor.shape, tensor.strides, strict=True)
      last = tensor.offset + sum((n - 1) * step for n, step in steps)
      sound = last < tensor.storage.n_values
    if not sound:
      raise self._damaged(f"the tensor {name} reaches out of its storage")


class _TensorUnpickler(pickle.Unpickler):
  """Knows tensors, dictionaries and nothing else."""

  def __init__(self, file: io.BytesIO, source: str):
    super().__init__(file, encoding="utf-8")
    self._source = source

  def find_class(self, module: str, name: str) -> Any:
    if (module, name) == ("collections", "OrderedDict"):
      return collections.OrderedDict
    if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
      return _rebuild_tensor
    if (module, name) == ("torch._utils", "_rebuild_parameter"):
      return _rebuild_parameter
    if module == "torch" and name.endswith("Storage"):
      return name
    raise UserError(
      f"{self._source}: its pickle calls {module}.{name}, which tensors do not "
      "need and which is not safe to run; save the model's state_dict(), or "
      "convert it to safetensors"
    )

  def persistent_load(self, pid: Any) -> _Storage:
    what, kind, key, _, n_values = pid
    if what != "storage":
      raise ValueError(f"an object of kind {what!r}")
    return _Storage(str(key), kind, n_values)


def _rebuild_tensor(
  storage: _Storage, offset: int, shape: Any, strides: Any, *rest: Any
) -> _Tensor:
  del rest  # requires_grad, hooks: nothing that changes the values
  if not isinstance(storage, _Storage):
    raise ValueError("a tensor without a storage")
  return _Tensor(storage, offset, tuple(shape), tuple(strides))


def _rebuild_parameter(data: _Tensor, *rest: Any) -> _Tensor:
  del rest
  return data
