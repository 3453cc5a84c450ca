"""Writes what torch.save does: a zip archive around a pickle, opcode by opcode.

Only for tests, and small: a pickler would insist on importing torch.
"""

import struct
import zipfile
import zlib

import numpy as np

STORAGES = {
  "float32": "FloatStorage",
  "float16": "HalfStorage",
  "bfloat16": "BFloat16Storage",
  "int64": "LongStorage",
}


def text(value):
  raw = value.encode()
  return b"X" + struct.pack("<I", len(raw)) + raw


def integers(values):
  return b"(" + b"".join(b"J" + struct.pack("<i", n) for n in values) + b"t"


def called(module, name, arguments):
  """module.name(*arguments), the arguments a pickled tuple."""
  return f"c{module}\n{name}\n".encode() + arguments + b"R"


def storage_of(array):
  """The array that owns the memory of a view."""
  while isinstance(array.base, np.ndarray):
    array = array.base
  return array


def tensor(array, key):
  """A view of its storage, with offset, shape and strides in values."""
  base = storage_of(array)
  start = array.__array_interface__["data"][0]
  offset = start - base.__array_interface__["data"][0]
  width = array.itemsize
  kind = STORAGES[str(array.dtype)]
  storage = (
    b"(" + text("storage") + f"ctorch\n{kind}\n".encode() + text(key)
    + text("cpu") + b"J" + struct.pack("<i", base.size) + b"tQ"
  )  # fmt: skip
  return called(
    "torch._utils", "_rebuild_tensor_v2",
    b"(" + storage + b"J" + struct.pack("<i", offset // width)
    + integers(array.shape) + integers(s // width for s in array.strides)
    + b"\x89" + called("collections", "OrderedDict", b")") + b"t",
  )  # fmt: skip


def parameter(array, key):
  hooks = called("collections", "OrderedDict", b")")
  return called(
    "torch._utils",
    "_rebuild_parameter",
    b"(" + tensor(array, key) + b"\x88" + hooks + b"t",
  )


def dictionary(items):
  """An OrderedDict of pickled values, with the attribute torch gives it."""
  metadata = called("collections", "OrderedDict", b")")
  return (
    called("collections", "OrderedDict", b")") + b"("
    + b"".join(text(name) + value for name, value in items.items())
    + b"u}" + text("_metadata") + metadata + b"sb"
  )  # fmt: skip


def write_archive(path, pickled, storages, byteorder=b"little", level=0):
  """A zip as torch writes it: not compressed, members aligned to 64 bytes."""
  kind = zipfile.ZIP_DEFLATED if level else zipfile.ZIP_STORED
  with zipfile.ZipFile(path, "w", kind) as archive:
    members = {"data.pkl": b"\x80\x02" + pickled + b".", "byteorder": byteorder}
    members |= {
      f"data/{key}": array.tobytes() for key, array in storages.items()
    }
    for name, raw in (members | {"version": b"3\n"}).items():
      info = zipfile.ZipInfo(f"archive/{name}")
      info.compress_type = kind
      begin = archive.fp.tell() + 30 + len(info.filename) + 4
      padding = -begin % 64
      info.extra = b"FB" + struct.pack("<H", padding) + b"Z" * padding
      archive.writestr(info, raw)


def write_torch(path, arrays, as_parameters=False):
  """Saves a state dict; views of one array share a storage."""
  bases, items = {}, {}
  for name, array in arrays.items():
    base = storage_of(array)
    key = next((k for k, b in bases.items() if b is base), str(len(bases)))
    bases[key] = base
    items[name] = (parameter if as_parameters else tensor)(array, key)
  write_archive(path, dictionary(items), bases)


def flip_bit_of_storage(path, array):
  """Damages one value where the array lies in the file."""
  raw = bytearray(path.read_bytes())
  at = raw.find(array.tobytes())
  assert at > 0 and zlib.crc32(array.tobytes())
  raw[at + 2] ^= 16
  path.write_bytes(raw)
