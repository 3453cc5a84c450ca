"""Files of text: what is read, and what is told from text, in one line."""

import bz2
import gzip
import json
import lzma
import os
import random
import sys

import pytest

from mtpjax.config import Data
from mtpjax.data import load_tokenizer, prepare, read_documents, text_files
from mtpjax.data.document import InvalidText
from mtpjax.errors import UserError

TEXT = "naïve 🙂 text\r\nof two lines\n"
PACKERS = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}


def fails(spec, *words, kind=UserError, replace=False):
  with pytest.raises(kind) as caught:
    texts_of(spec, replace)
  message = str(caught.value)
  assert "\n" not in message
  for word in words:
    assert word in message, message
  return caught.value


def texts_of(spec, replace=False):
  found = []
  for document in read_documents(spec, replace):
    texts = [text for text, _ in document.parts]
    if document.long_text is not None:
      texts = ["".join(document.long_text.pieces())]
    found += texts
  return found


@pytest.fixture(params=["at once", "in pieces"])
def way(request, monkeypatch):
  """Both ways of reading a file, on small files."""
  if request.param == "in pieces":
    monkeypatch.setattr(text_files, "SHORT", 0)
    monkeypatch.setattr(text_files, "_PIECE", 3)


@pytest.mark.usefixtures("way")
def test_pieces_join_to_the_text_without_its_mark(tmp_path):
  raw = ("\ufeff" + TEXT).encode()
  (tmp_path / "a.txt").write_bytes(raw)
  (tmp_path / "b.txt").write_bytes(TEXT.encode() + raw)
  (tmp_path / "c.txt").write_bytes(b"")
  (tmp_path / "d.txt").write_bytes("\ufeff".encode())
  assert texts_of(f"text:{tmp_path}/*.txt") == [
    TEXT, TEXT + "\ufeff" + TEXT, "", "",
  ]  # fmt: skip


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("suffix", PACKERS)
def test_compressed_files_are_read(tmp_path, suffix):
  path = tmp_path / f"a.txt.{suffix}"
  packed = PACKERS[suffix](("\ufeff" + TEXT).encode())
  path.write_bytes(packed)
  seen = []
  for document in read_documents(f"text:{path}", False, seen.append):
    if document.long_text is not None:
      list(document.long_text.pieces(seen.append))
  assert texts_of(f"text:{path}") == [TEXT]
  assert sum(seen) == len(packed)
  lines = tmp_path / f"a.jsonl.{suffix}"
  lines.write_bytes(PACKERS[suffix](json.dumps({"t": TEXT}).encode()))
  assert texts_of(f"jsonl:{lines}:t") == [TEXT]
  path.write_bytes(PACKERS[suffix](random.Random(0).randbytes(999))[:-200])
  fails(f"text:{path}", str(path), "compressed and damaged")


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_bytes_that_are_not_utf8_are_found_where_they_are(tmp_path, mark):
  rng = random.Random(0)
  path = tmp_path / "a.txt"
  for _ in range(40):
    text = "".join(rng.choice("aé日🙂") for _ in range(rng.randrange(9)))
    raw = (mark + text).encode()
    bad = rng.choice([b"\xff", "é".encode()[:1], "🙂".encode()[:3], b"\x80"])
    rest = rng.choice([b"", b"b", b"bcdef"])
    path.write_bytes(raw + bad + rest)
    error = fails(f"text:{path}", f"{path}: not UTF-8 at", kind=InvalidText)
    assert f"at byte {len(raw)} (0x{bad[0]:02x})" in str(error)
    expected = (raw + bad + rest).decode("utf-8", "replace")
    assert texts_of(f"text:{path}", True) == [expected.removeprefix("\ufeff")]


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("kind", ["text:{}", "jsonl:{}:text"])
@pytest.mark.parametrize(
  ("raw", "words"),
  [
    ('{"text": "é"}'.encode("utf-16"), ("is UTF-16", "iconv -f UTF-16")),
    ('{"text": "é"}'.encode("utf-16-le"), ("is UTF-16", "iconv")),
    (b"\xfe\xff" + "é".encode("utf-16-be"), ("is UTF-16", "iconv")),
    ('{"text": "é"}'.encode("utf-32"), ("is UTF-32", "iconv -f UTF-32")),
    (b"\x28\xb5\x2f\xfd\x04", ("zstd", "zstd -d")),
    (b"PK\x03\x04\x14", ("zip", "unpack it first")),
    (b"PAR1\x15", ("Parquet", "JSON Lines")),
    (b"%PDF-1.7\n", ("PDF", "extract its text")),
    (b"\x7fELF\x02\x01", ("not text", "leave it out")),
  ],
)
def test_what_is_no_utf8_is_named(tmp_path, kind, raw, words):
  path = tmp_path / "file"
  path.write_bytes(raw)
  for replace in (False, True):
    error = fails(kind.format(path), str(path), *words, replace=replace)
    # Reading its bytes as U+FFFD is not the way out.
    assert not isinstance(error, InvalidText)


def test_binary_files_are_not_advised_to_be_read_as_replacements(tmp_path):
  path = tmp_path / "file.bin"
  path.write_bytes(b"\x01\x00\x02\xff\xee" * 20)
  error = fails(f"text:{path}", str(path), "binary", "leave it out")
  assert not isinstance(error, InvalidText)
  # NUL is a character like any other.
  path.write_bytes(b"nul \x00 here, and only here")
  assert texts_of(f"text:{path}") == ["nul \x00 here, and only here"]


def test_a_mark_at_the_head_of_json_lines_and_python_is_dropped(tmp_path):
  path = tmp_path / "a.jsonl"
  path.write_bytes('\ufeff{"text": "\ufeffone"}\n{"text": "two"}\n'.encode())
  assert texts_of(f"jsonl:{path}:text") == ["\ufeffone", "two"]
  path.write_bytes("\ufeff\r\n\r\n".encode())
  assert texts_of(f"jsonl:{path}:text") == []


def test_a_mark_in_a_python_file_is_dropped(tmp_path, monkeypatch):
  package = tmp_path / "marked"
  package.mkdir()
  (package / "__init__.py").write_bytes("\ufeffA = 'é'\n".encode())
  (package / "gone.py").symlink_to(tmp_path / "nowhere.py")
  monkeypatch.syspath_prepend(tmp_path)
  assert texts_of("python-package:marked") == ["A = 'é'\n"]


def test_what_is_there_is_meant_literally(tmp_path):
  for folder, text in (("x[1]", "literal"), ("x1", "matched"), ("y*", "star")):
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "a.txt").write_text(text)
    (tmp_path / folder / "a[2].txt").write_text(text + " 2")
  for pattern, texts in (
    ("x[1]/a.txt", ["literal"]),
    ("x[1]/*.txt", ["literal", "literal 2"]),
    ("x[1]/a[2].txt", ["literal 2"]),
    ("x[1]/**/a.txt", ["literal"]),
    ("x[1-9]/a.txt", ["matched"]),
    ("y*/a.txt", ["star"]),
  ):
    found = read_documents(f"text:{tmp_path}/{pattern}")
    documents = list(found)
    assert [d.parts[0][0] for d in documents] == texts, pattern
    if pattern.startswith("x[1]"):
      assert all("/" not in document.name for document in documents)


def test_what_is_no_file_is_named(tmp_path):
  (tmp_path / "good.txt").write_text("good")
  (tmp_path / "folder.txt").mkdir()
  # A folder among what a glob matches is no text and no mistake.
  assert texts_of(f"text:{tmp_path}/*.txt") == ["good"]
  fails(f"text:{tmp_path}", "names a folder", f"{tmp_path}/*")
  fails(f"jsonl:{tmp_path}:text", "names a folder")
  pipe = tmp_path / "pipe.txt"
  os.mkfifo(pipe)
  for pattern in (pipe, tmp_path / "*.txt"):
    fails(f"text:{pattern}", str(pipe), "is a pipe")
  pipe.unlink()
  link = tmp_path / "link.txt"
  link.symlink_to("nowhere")
  for pattern in (link, tmp_path / "*.txt"):
    fails(f"text:{pattern}", str(link), "broken link", "nowhere")
  fails("text:/dev/null", "/dev/null", "device")


def test_files_that_may_not_be_read_are_named(tmp_path, monkeypatch):
  path = tmp_path / "secret.txt"
  path.write_text("secret")

  def refuse(file, *_):
    raise PermissionError(13, "Permission denied", file)

  monkeypatch.setattr(text_files, "open", refuse, raising=False)
  for spec in (f"text:{path}", f"jsonl:{path}:text"):
    fails(spec, str(path), "Permission denied", "leave it out")


def test_numbers_of_any_length_are_read(tmp_path):
  path = tmp_path / "long.jsonl"
  digits = "7" * 9131
  path.write_text(
    f'{{"n": {digits}, "text": "one", "list": [-{digits}, 1e999, NaN]}}\n'
    f'{{"text": "two", "n": 12}}\n'
  )
  assert texts_of(f"jsonl:{path}:text") == ["one", "two"]
  before = sys.get_int_max_str_digits()
  path.write_text(f'{{"text": {digits}}}\n')
  fails(f"jsonl:{path}:text", f"{path}:1", "field 'text'")
  assert sys.get_int_max_str_digits() == before
  message = f'{{"role": "assistant", "content": "hi", "n": {digits}}}'
  path.write_text(f'{{"m": [{message}]}}\n')
  (document,) = read_documents(f"jsonl:{path}:m")
  assert document.messages[0]["n"] == digits


def test_deep_nesting_is_one_line(tmp_path):
  path = tmp_path / "deep.jsonl"
  deep = "[" * 100_000 + "]" * 100_000
  path.write_text('{"text": "fine"}\n' + f'{{"text": "x", "d": {deep}}}\n')
  fails(f"jsonl:{path}:text", f"{path}:2", "nested too deeply")


@pytest.mark.usefixtures("way")
def test_a_long_text_is_the_same_data(tmp_path):
  path = tmp_path / "a.txt"
  path.write_bytes(("\ufeff" + TEXT * 40).encode())
  config = Data(
    path=str(tmp_path / "data"), sources=(f"text:{path}",), row_length=32
  )
  result = prepare(config, load_tokenizer("bytes"))
  assert result["identity"]["sources"] == [
    {
      "spec": f"text:{path}",
      "documents": 1,
      # Of ["a.txt", [[TEXT * 40, true]]] with its length in front.
      "sha256": expected_digest(["a.txt", [[TEXT * 40, True]]]),
    }
  ]
  assert prepare(config, load_tokenizer("bytes"))["kept"]


def expected_digest(content):
  import hashlib

  raw = json.dumps(content).encode()
  return hashlib.sha256(len(raw).to_bytes(8) + raw).hexdigest()
