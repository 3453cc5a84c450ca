"""How many tokens a model sees at most, by where it came from."""

import json

import pytest

from mtpjax.checkpoint import max_length
from mtpjax.config import Base, Config, Data, Heads
from mtpjax.errors import UserError


def write(folder, **origin):
  folder.mkdir(exist_ok=True)
  (folder / "origin.json").write_text(json.dumps(origin))
  return folder


def config(base=""):
  return Config(
    heads=Heads(kind="medusa", tap="last", matched=False),
    data=Data(row_length=512),
    base=Base(path=str(base)),
  )


def test_an_imported_model_has_its_positions(tmp_path):
  assert max_length(write(tmp_path / "a", max_length=8192), config()) == 8192


def test_heads_have_those_of_their_base(tmp_path):
  base = write(tmp_path / "base", max_length=2048)
  assert max_length(tmp_path / "run", config(base)) == 2048
  heads = write(tmp_path / "heads", format="medusa")
  assert max_length(heads, config(base)) == 2048


@pytest.mark.parametrize("origin", [{}, {"max_length": 0}])
def test_what_nobody_knows_is_the_length_of_the_rows(tmp_path, origin):
  assert max_length(write(tmp_path / "a", **origin), config()) == 512
  assert max_length(tmp_path / "none", config(tmp_path / "gone")) == 512


@pytest.mark.parametrize("text", ["{", "[]", '{"max_length": "many"}'])
def test_a_damaged_origin_is_one_line(tmp_path, text):
  (tmp_path / "origin.json").write_text(text)
  with pytest.raises(UserError, match="origin.json.*convert it anew") as error:
    max_length(tmp_path, config())
  assert "\n" not in str(error.value)
