"""The vocabulary of bytes as a tokenizer.json: id for id the one of our own."""

import json
import random

import pytest

from mtpjax import data
from mtpjax.data import byte_vocabulary


@pytest.fixture
def written(tmp_path):
  text = json.dumps(byte_vocabulary.definition())
  (tmp_path / "tokenizer.json").write_text(text)
  return data.load_tokenizer(str(tmp_path))


def test_it_is_that_of_bytes(written):
  ours = data.load_tokenizer("bytes")
  for name in ("vocab_size", "ids", "bos_id", "eos_ids", "adds_bos"):
    assert getattr(written, name) == getattr(ours, name), name
  assert written.token_bytes() == ours.token_bytes()
  rng = random.Random(0)
  planes = (range(128), range(0xD800), range(0xE000, 0x110000))
  for _ in range(2000):
    letters = (chr(rng.choice(rng.choice(planes))) for _ in range(9))
    text = "".join(letters)
    assert written.encode(text) == ours.encode(text), text
    ids = [rng.randrange(258) for _ in range(9)]
    assert written.decode(ids) == ours.decode(ids), ids


def test_it_is_known_again_and_no_other_is(tmp_path):
  definition = byte_vocabulary.definition()
  assert byte_vocabulary.is_definition(json.dumps(definition, indent=2))
  definition["added_tokens"][0]["content"] = "<s>"
  assert not byte_vocabulary.is_definition(json.dumps(definition))
  for text in ("", "{", "[]", "[" * 100_000):
    assert not byte_vocabulary.is_definition(text)
