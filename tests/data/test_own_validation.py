"""Sources of their own for validation, and packages as sources."""

import dataclasses
import json

import pytest

from mtpjax import config as config_lib
from mtpjax.data import (
  load_tokenizer,
  open_rows,
  prepare,
  require_prepared_for,
)
from mtpjax.data.sources import read_documents
from mtpjax.errors import UserError


@pytest.fixture
def made(tmp_path):
  for name, letter in (("train", "a"), ("held", "b")):
    (tmp_path / name).mkdir()
    for i in range(6):
      (tmp_path / name / f"{i}.txt").write_text(letter * (20 + i))
  return config_lib.Data(
    path=str(tmp_path / "data"),
    sources=(f"text:{tmp_path}/train/*.txt",),
    validation_sources=(f"text:{tmp_path}/held/*.txt",),
    row_length=32,
    max_documents=5,
  )


def letters(data, split):
  rows = open_rows(data.path, split)
  ids = {int(i) for n in range(len(rows)) for i in rows[n]["tokens"]}
  return {chr(i) for i in ids if 0 < i < 256}


def test_each_split_has_its_own_sources(made):
  tokenizer = load_tokenizer("bytes")
  result = prepare(made, tokenizer)
  assert letters(made, "train") == {"a"}
  assert letters(made, "validation") == {"b"}
  # The limit is on what is trained on.
  counts = {k: v["documents"] for k, v in result["splits"].items()}
  assert counts == {"train": 5, "validation": 6}
  assert prepare(made, tokenizer)["kept"]
  assert require_prepared_for(made, tokenizer)["id"] == result["id"]


def test_other_validation_sources_are_other_data(made):
  tokenizer = load_tokenizer("bytes")
  prepare(made, tokenizer)
  swapped = dataclasses.replace(
    made, sources=made.validation_sources, validation_sources=made.sources
  )
  without = dataclasses.replace(made, validation_sources=())
  for other, reason in (
    (swapped, "(sources "),
    (without, "validation sources"),
  ):
    with pytest.raises(UserError) as error:
      require_prepared_for(other, tokenizer)
    assert reason in str(error.value) and "\n" not in str(error.value)
  with pytest.raises(UserError):
    prepare(without, tokenizer)


def test_data_without_them_keeps_its_identity(made, tmp_path):
  plain = dataclasses.replace(
    made, validation_sources=(), path=str(tmp_path / "plain")
  )
  prepare(plain, load_tokenizer("bytes"))
  text = (tmp_path / "plain" / "fingerprint.json").read_text()
  [source] = json.loads(text)["identity"]["sources"]
  assert set(source) == {"spec", "documents", "sha256"}


def test_a_package_is_its_python_files(tmp_path, monkeypatch):
  package = tmp_path / "somepackage"
  (package / "tests").mkdir(parents=True)
  (package / "__init__.py").write_text("raise ValueError('imported')\n")
  (package / "b.py").write_text("B = 1\n")
  (package / "data.txt").write_text("no")
  (package / "tests" / "test_b.py").write_text("no")
  monkeypatch.syspath_prepend(tmp_path)
  found = {
    d.name: d.parts for d in read_documents("python-package:somepackage")
  }
  assert found == {
    "somepackage/__init__.py": (("raise ValueError('imported')\n", True),),
    "somepackage/b.py": (("B = 1\n", True),),
  }


@pytest.mark.parametrize("name", ["", "no_such_package", "os.path", "a b"])
def test_no_such_package_is_refused(name):
  with pytest.raises(UserError) as error:
    read_documents(f"python-package:{name}")
  assert "names no installed package" in str(error.value)
