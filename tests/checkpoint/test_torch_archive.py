"""Files of torch.save, read without torch: values, views, damage, safety."""

import pickle
import re

import jax.numpy as jnp
import numpy as np
import pytest
import write_torch

from mtpjax.checkpoint.convert.containers.torch_archive import TorchArchive
from mtpjax.errors import UserError


def arrays():
  rng = np.random.default_rng(0)
  return {
    "a.weight": rng.normal(size=(6, 4)).astype(np.float32),
    "b": rng.normal(size=5).astype(np.float16),
    "c": rng.normal(size=(3, 2)).astype(jnp.bfloat16),
  }


@pytest.fixture
def path(tmp_path):
  path = tmp_path / "consolidated.00.pth"
  write_torch.write_torch(path, arrays())
  return path


def refused(path, *words):
  """The one line with which opening and reading it all fails."""
  with pytest.raises(UserError) as caught:
    archive = TorchArchive(path)
    for name in archive.names():
      archive.read(name)
  message = str(caught.value)
  assert "\n" not in message and message.startswith(f"{path}: ")
  for word in words:
    assert word in message, message
  return message


@pytest.mark.parametrize("as_parameters", [False, True])
def test_values_shapes_and_dtypes(tmp_path, as_parameters):
  path = tmp_path / "x.pth"
  write_torch.write_torch(path, arrays(), as_parameters)
  archive = TorchArchive(path)
  assert list(archive.names()) == list(arrays())
  for name, array in arrays().items():
    assert archive.shape(name) == array.shape
    got = archive.read(name)
    assert got.dtype == array.dtype
    np.testing.assert_array_equal(got, array)


def test_parts(path):
  archive = TorchArchive(path)
  part = archive.read("a.weight", slice(1, 5), slice(2, 3))
  np.testing.assert_array_equal(part, arrays()["a.weight"][1:5, 2:3])
  np.testing.assert_array_equal(
    archive.read("b", slice(3, 5)), arrays()["b"][3:5]
  )


def test_views_of_one_storage(tmp_path):
  base = np.arange(24, dtype=np.float32)
  views = {
    "transposed": base.reshape(4, 6).T,
    "rows": base.reshape(4, 6)[1:3],
    "columns": base.reshape(4, 6)[:, 2:4],
    "every_second": base[1::2],
    "scalar": base[7:8].reshape(()),
    "empty": base[:0],
    "all": base,
  }
  path = tmp_path / "x.pth"
  write_torch.write_torch(path, views)
  archive = TorchArchive(path)
  for name, view in views.items():
    np.testing.assert_array_equal(archive.read(name), view)
  np.testing.assert_array_equal(
    archive.read("transposed", slice(1, 4), slice(0, 2)),
    views["transposed"][1:4, :2],
  )


def test_what_was_read_outlives_the_file(path):
  array = TorchArchive(path).read("a.weight")
  path.write_bytes(b"")
  np.testing.assert_array_equal(array, arrays()["a.weight"])


def test_a_flipped_bit_is_found(path):
  write_torch.flip_bit_of_storage(path, arrays()["a.weight"])
  refused(path, "the tensor a.weight does not match its checksum")


def test_every_truncation_is_refused(path):
  whole = path.read_bytes()
  for length in range(0, len(whole), 37):
    path.write_bytes(whole[:length])
    refused(path)


def test_every_damaged_byte_of_the_pickle_is_refused(path):
  # The checksum finds them all.
  whole = path.read_bytes()
  begin = whole.index(b"\x80\x02c")
  for at in range(begin, begin + 300, 11):
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    refused(path, "data.pkl does not match its checksum")


@pytest.mark.parametrize(
  "pickled, words",
  [
    (b"junk", ["is no pickle of tensors"]),
    (b"", ["is no pickle of tensors"]),
    (b"(lp0\n", ["a list, not a dictionary"]),
    (b"}" + write_torch.text("step") + b"K\x05s", ["'step' is a int"]),
    (b"}" + write_torch.text("model") + b"}s", ["'model' is a dict"]),
    (b"}K\x05K\x05s", ["5 is a int, not a tensor"]),
    (b"}" + write_torch.text("x") + b"(" + write_torch.text("module")
     + b"K\x01K\x01K\x01K\x01tQs", ["is no pickle of tensors"]),
  ],
)  # fmt: skip
def test_other_contents_are_refused(tmp_path, pickled, words):
  path = tmp_path / "x.pth"
  write_torch.write_archive(path, pickled, {})
  refused(path, *words)


class Evil:
  def __reduce__(self):
    return (exec, ("import pathlib; pathlib.Path('/no/where').touch()",))


@pytest.mark.parametrize(
  "pickled, named",
  [
    (pickle.dumps(Evil(), 2)[2:-1], "__builtin__.exec"),
    (write_torch.called("os", "system", b"(" + write_torch.text("x") + b"t"),
     "os.system"),
    (write_torch.called("torch", "load", b"(t"), "torch.load"),
    (write_torch.called("torch._utils", "_rebuild_sparse_tensor", b"(t"),
     "torch._utils._rebuild_sparse_tensor"),
    (write_torch.called("builtins", "getattr", b"(t"), "builtins.getattr"),
    (write_torch.called("numpy", "dtype", b"(t"), "numpy.dtype"),
  ],
)  # fmt: skip
def test_nothing_else_is_ever_called(tmp_path, pickled, named):
  path = tmp_path / "x.pth"
  write_torch.write_archive(path, pickled, {})
  refused(path, f"its pickle calls {named}", "not safe")


@pytest.mark.parametrize(
  "offset, shape, strides",
  [(0, (7,), (1,)), (3, (4,), (1,)), (0, (2, 2), (6, 1)), (0, (2,), (1, 1)),
   (-1, (2,), (1,)), (5, (2,), (-1,)), (0, (-3,), (1,))],
)  # fmt: skip
def test_views_outside_of_their_storage(tmp_path, offset, shape, strides):
  base = np.zeros(6, np.float32)
  sound = write_torch.tensor(base, "0")
  # The offset follows the storage; then shape and strides.
  damaged = re.sub(
    rb"tQJ.{4}\(J.{4}t\(J.{4}t",
    lambda found: (
      b"tQ"
      + write_torch.integers([offset])[1:-1]
      + write_torch.integers(shape)
      + write_torch.integers(strides)
    ),
    sound,
    flags=re.DOTALL,
  )
  assert damaged != sound
  path = tmp_path / "x.pth"
  write_torch.write_archive(
    path, write_torch.dictionary({"w": damaged}), {"0": base}
  )
  refused(path, "the tensor w reaches out of its storage")


def test_a_storage_that_is_missing_or_short(tmp_path):
  base = np.arange(6, dtype=np.float32)
  pickled = write_torch.dictionary({"w": write_torch.tensor(base, "0")})
  path = tmp_path / "x.pth"
  write_torch.write_archive(path, pickled, {})
  refused(path, "the tensor w is missing (archive/data/0)")
  write_torch.write_archive(path, pickled, {"0": base[:5]})
  refused(path, "the tensor w should have 24 bytes of storage, not 20")


def test_other_dtypes_are_refused_where_they_are_read(tmp_path):
  path = tmp_path / "x.pth"
  there = {"count": np.arange(3), "w": np.ones(2, np.float32)}
  write_torch.write_torch(path, there)
  np.testing.assert_array_equal(TorchArchive(path).read("w"), [1, 1])
  refused(path, "the tensor count is a torch.LongStorage", "float32")


def test_the_old_format_is_refused_with_the_way_out(tmp_path):
  path = tmp_path / "x.pth"
  path.write_bytes(pickle.dumps(0x1950A86A20F9469CFC6C, 2) + b"more")
  refused(path, "before PyTorch 1.6", "torch.save")


def test_other_files_are_refused(tmp_path):
  path = tmp_path / "x.pth"
  refused(path, "cannot be read (No such file or directory)")
  path.write_bytes(b"")
  refused(path, "no file of torch.save")
  array = np.zeros(100, np.float32)
  pickled = write_torch.dictionary({"w": write_torch.tensor(array, "0")})
  write_torch.write_archive(path, pickled, {"0": array}, level=9)
  refused(path, "is compressed")
  write_torch.write_archive(path, pickled, {"0": array}, byteorder=b"big")
  refused(path, "its byte order is big")
