import hashlib
import json
import shutil

import pytest

from mtpjax.checkpoint import digest


@pytest.fixture
def directory(tmp_path):
  path = tmp_path / "40"
  (path / "state" / "d").mkdir(parents=True)
  (path / "marker").write_bytes(b"")
  (path / "state" / "d" / "data").write_bytes(bytes(range(256)) * 40)
  digest.write(path)
  return path


def test_lists_every_file_with_size_and_sha256(directory):
  data = bytes(range(256)) * 40
  assert json.loads((directory / digest.NAME).read_text()) == {
    "marker": {"bytes": 0, "sha256": hashlib.sha256(b"").hexdigest()},
    "state/d/data": {
      "bytes": len(data),
      "sha256": hashlib.sha256(data).hexdigest(),
    },
  }


def test_intact_copy_has_no_damage(directory, tmp_path):
  copy = shutil.copytree(directory, tmp_path / "elsewhere")
  (copy / "notes.txt").write_text("files that were added do not matter")
  assert digest.exists(copy)
  assert digest.find_damage(copy) == ""


def flip(path):
  data = bytearray(path.read_bytes())
  data[5000] ^= 1
  path.write_bytes(data)


def truncate(path):
  path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
  "damage, words",
  [
    (flip, "other contents"),
    (truncate, "10239 bytes instead of 10240"),
    (lambda path: path.unlink(), "is missing"),
  ],
)
def test_names_the_damaged_file(directory, damage, words):
  damage(directory / "state" / "d" / "data")
  found = digest.find_damage(directory)
  assert found.startswith("state/d/data") and words in found


@pytest.mark.parametrize("text", ["", "[1]", '{"a": {}}', '{"a": 1}', "\x00"])
def test_unreadable_digest_is_damage(directory, text):
  (directory / digest.NAME).write_text(text)
  assert "not readable" in digest.find_damage(directory)


@pytest.mark.parametrize("size", ["Infinity", "NaN", "1e999", "[" * 10**5])
def test_a_size_that_is_no_number_is_damage(directory, size):
  text = f'{{"marker": {{"bytes": {size}, "sha256": ""}}}}'
  (directory / digest.NAME).write_text(text)
  assert digest.find_damage(directory) == f"{digest.NAME} is not readable"


def test_a_file_alone_can_be_compared(directory):
  (directory / "state" / "d" / "data").unlink()
  assert digest.find_damage(directory, only="marker") == ""
  (directory / "marker").write_bytes(b"x")
  assert "1 bytes instead of 0" in digest.find_damage(directory, only="marker")
