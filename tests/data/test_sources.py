"""Every kind of source, and every way to get one wrong."""

import json
import subprocess
import sys

import numpy as np
import pytest

from mtpjax.data import read_documents, size_of
from mtpjax.errors import UserError


def fails(spec, *words, replace=False):
  with pytest.raises(UserError) as caught:
    size_of(spec)
    list(read_documents(spec, replace))
  message = str(caught.value)
  assert "\n" not in message
  for word in words:
    assert word in message, message


def test_stdlib_is_deterministic_utf8_and_without_tests():
  documents = list(read_documents("python-stdlib"))
  assert documents == list(read_documents("python-stdlib"))
  names = [d.name for d in documents]
  assert len(set(names)) == len(names)
  by_name = {d.name: d for d in documents}
  with open(json.decoder.__file__, encoding="utf-8") as file:
    text = file.read()
  assert by_name["python-stdlib/json/decoder.py"].parts == ((text, True),)
  folders = {part for name in names for part in name.split("/")[:-1]}
  assert not folders & {"site-packages", "test", "tests", "idle_test"}


def test_stdlib_skips_files_in_another_coding(tmp_path):
  from mtpjax.data import sources

  (tmp_path / "b.py").write_bytes(b"# coding: latin-1\nx = '\xe9'\n")
  (tmp_path / "a.py").write_text("x = 'é'\n", encoding="utf-8")
  (tmp_path / "c.py").write_bytes(b"x = '\xff'\n")
  (tmp_path / "d.py").write_bytes(b"# coding: nonsense\n")
  (tmp_path / "e.txt").write_text("no Python")
  found = {
    d.name: d.parts
    for d in sources._read_files(tmp_path, "python-stdlib", sources.ignore)
  }
  assert found == {
    "python-stdlib/a.py": (("x = 'é'\n", True),),
    "python-stdlib/b.py": (),
    "python-stdlib/c.py": (),
    "python-stdlib/d.py": (),
  }


def test_text_is_one_document_per_file_sorted_and_recursive(tmp_path):
  (tmp_path / "sub").mkdir()
  for name, text in (("b.txt", "B\r\n"), ("a.txt", "A"), ("sub/c.txt", "C")):
    (tmp_path / name).write_bytes(text.encode())
  texts = [d.parts for d in read_documents(f"text:{tmp_path}/**/*.txt")]
  assert texts == [(("A", True),), (("B\r\n", True),), (("C", True),)]
  literal = tmp_path / "x[1].txt"
  literal.write_text("literal")
  (document,) = read_documents(f"text:{literal}")
  assert document.parts == (("literal", True),)


def test_a_pattern_below_a_folder_with_a_bracket_in_its_name(tmp_path):
  for folder in ("x[1]", "x1"):  # the second is what the first would match
    (tmp_path / folder / "sub").mkdir(parents=True)
    (tmp_path / folder / "sub" / "a.txt").write_text(folder)
  for pattern in ("x[1]/**/*.txt", "x[1]/sub/[a-b].txt"):
    (document,) = read_documents(f"text:{tmp_path}/{pattern}")
    assert document.parts == (("x[1]", True),)
  (document,) = read_documents(f"text:{tmp_path}/x[0-9]/*/a.txt")
  assert document.parts == (("x1", True),)


def test_names_do_not_depend_on_where_the_text_lies(tmp_path, monkeypatch):
  names = []
  for folder in ("here", "elsewhere/deep"):
    (tmp_path / folder / "sub").mkdir(parents=True)
    for name in ("a.txt", "sub/b.txt"):
      (tmp_path / folder / name).write_text("text")
    monkeypatch.chdir(tmp_path / folder)
    for pattern in (f"{tmp_path}/{folder}/**/*.txt", "**/*.txt", "./**/*.txt"):
      names.append([d.name for d in read_documents(f"text:{pattern}")])
  assert names == [["a.txt", "sub/b.txt"]] * 6


def test_jsonl_fields_and_blank_lines(tmp_path):
  path = tmp_path / "d.jsonl"
  path.write_text('{"text": "one", "q": "?", "a": "!"}\n\n{"text": "two"}')
  documents = list(read_documents(f"jsonl:{path}:text"))
  assert [d.parts for d in documents] == [(("one", True),), (("two", True),)]
  assert [d.name for d in documents] == ["d.jsonl:1", "d.jsonl:3"]
  first = next(read_documents(f"jsonl:{path}:q,a"))
  assert first.parts == (("?", False), ("!", True))


def test_malformed_specs_fail(tmp_path):
  fails("jsnl:x:text", "jsnl:x:text", "did you mean jsonl", "text:GLOB")
  fails("", "source ''", "text:GLOB")
  fails("python-stdlib:3", "python-stdlib:3")
  fails("text", "incomplete", "text:GLOB")
  fails("text:", "matches no file")
  fails(f"text:{tmp_path}/*.md", f"{tmp_path}/*.md", "matches no file")
  fails(f"jsonl:{tmp_path}", "jsonl:PATH:FIELD")
  fails("jsonl:x:a,b,c", "one or two fields")
  fails("jsonl:nowhere:text", "matches no file")
  fails("tfds:tiny", "needs a data set and a split")


def test_invalid_utf8_names_file_and_offset(tmp_path):
  path = tmp_path / "bad.txt"
  path.write_bytes(b"good \xff\xfe end")
  fails(f"text:{path}", str(path), "byte 5", "0xff")
  (document,) = read_documents(f"text:{path}", True)
  assert document.parts == (("good \ufffd\ufffd end", True),)
  lines = tmp_path / "bad.jsonl"
  lines.write_bytes(b'{"text": "ok"}\n{"text": "\xff"}\n')
  fails(f"jsonl:{lines}:text", f"{lines}:2", "byte 10")


def test_lone_surrogates_are_no_text(tmp_path):
  path = tmp_path / "s.jsonl"
  path.write_text('{"text": "a\\ud83d\\ude42 b\\ud83d"}\n')
  fails(f"jsonl:{path}:text", f"{path}:1", "U+D83D")
  (document,) = read_documents(f"jsonl:{path}:text", True)
  assert document.parts == (("a🙂 b\ufffd", True),)


@pytest.mark.parametrize(
  ("line", "words"),
  [
    ("{not json}", (":1", "not valid JSON", "one JSON object per line")),
    ('["text"]', (":1", "list instead of an object")),
    ('{"body": "x", "id": 1}', ("no field 'text'", "body, id")),
    ('{"text": 3}', ("field 'text'", "int instead of a string")),
    ('{"text": null}', ("field 'text'", "NoneType instead of a string")),
  ],
)
def test_bad_json_lines_name_file_and_line(tmp_path, line, words):
  path = tmp_path / "bad.jsonl"
  path.write_text(line + "\n")
  fails(f"jsonl:{path}:text", str(path), *words)


@pytest.fixture(scope="module")
def tfds_folder(tmp_path_factory):
  tfds = pytest.importorskip("tensorflow_datasets")

  class TinyTexts(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
      features = tfds.features.FeaturesDict(
        {
          "text": tfds.features.Text(),
          "other": tfds.features.Text(),
          "number": tfds.features.Scalar(dtype=np.int64),
        }
      )
      return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, dl_manager):
      return {"train": self._generate_examples()}

    def _generate_examples(self):
      for i in range(20):
        yield i, {"text": f"text {i} é", "other": f"other {i}", "number": i}

  folder = tmp_path_factory.mktemp("tfds")
  builder = TinyTexts(data_dir=str(folder), file_format="array_record")
  builder.download_and_prepare()
  return folder, builder.info.splits["train"].num_examples


def test_tfds_reads_every_example(tfds_folder, monkeypatch):
  folder, n = tfds_folder
  monkeypatch.setenv("TFDS_DATA_DIR", str(folder))
  documents = list(read_documents("tfds:tiny_texts:train"))
  assert len(documents) == n == 20
  assert size_of("tfds:tiny_texts:train") is None
  texts = {text for d in documents for text, _ in d.parts}
  assert texts == {f"text {i} é" for i in range(20)}
  assert len({d.name for d in documents}) == 20
  half = list(read_documents("tfds:tiny_texts:1.0.0:train[:50%]:other"))
  assert len(half) == 10
  assert all(d.parts[0][0].startswith("other") for d in half)


def test_tfds_mistakes(tfds_folder, monkeypatch, tmp_path):
  folder, _ = tfds_folder
  monkeypatch.setenv("TFDS_DATA_DIR", str(folder))
  fails("tfds:no_such_thing:train", "no_such_thing", str(folder))
  fails("tfds:tiny_texts:test", "no split 'test'", "train")
  fails("tfds:tiny_texts:train:body", "no field 'body'", "number", "text")
  fails("tfds:tiny_texts:train:number", "instead of a string")
  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
  fails("tfds:tiny_texts:train", "is not prepared", str(tmp_path))
  (info,) = folder.glob("tiny_texts/*/dataset_info.json")
  other = tmp_path / "tiny_texts" / "1.0.0"
  other.mkdir(parents=True)
  for file in info.parent.iterdir():
    (other / file.name).write_bytes(file.read_bytes())
  values = json.loads(info.read_text()) | {"fileFormat": "tfrecord"}
  (other / info.name).write_text(json.dumps(values))
  fails("tfds:tiny_texts:train", "stored as tfrecord", "array_record")


def test_importing_the_package_is_cheap():
  code = """
import sys, mtpjax.data
heavy = {"jax", "grain", "tokenizers", "tensorflow_datasets"}
sys.exit(" ".join(heavy & set(sys.modules)))
"""
  done = subprocess.run([sys.executable, "-c", code], capture_output=True)
  assert done.stderr.decode().strip() == ""
