"""Whose run a work directory holds."""

import dataclasses
import json

import pytest

from mtpjax import config as config_lib
from mtpjax.checkpoint import WorkDir
from mtpjax.errors import UserError


def test_a_tokenizer_is_known_by_its_fingerprint_not_by_its_path(tmp_path):
  place = WorkDir(tmp_path)
  config = config_lib.Config(data=config_lib.Data(tokenizer="a/t.json"))
  place.data.write_text(json.dumps({"id": "1" * 64}))
  metadata = {"config": config.to_dict(), "data": "1" * 64}
  moved = dataclasses.replace(config.data, tokenizer="/b/tokenizer.json")
  moved = dataclasses.replace(config, data=moved)
  place.require_own_checkpoint(moved, metadata)
  # The id of the rows holds the tokenizer's fingerprint.
  with pytest.raises(UserError, match="data fingerprint is '2222"):
    place.require_own_checkpoint(moved, metadata | {"data": "2" * 64})


@pytest.mark.parametrize("value", [1, None, [], {"a": 1}, "[" * 100_000])
def test_a_fingerprint_without_an_id_is_damaged(tmp_path, value):
  place = WorkDir(tmp_path)
  deep = value if isinstance(value, str) else json.dumps({"id": value})
  place.data.write_text(deep)
  with pytest.raises(UserError, match="data.json: missing or damaged; copy"):
    place.data_id()


def test_what_is_no_work_directory_says_what_to_do(tmp_path):
  (tmp_path / "model").write_text("")
  with pytest.raises(UserError, match="model: is a file; give a folder"):
    WorkDir(tmp_path / "model").load_config()
  (tmp_path / "config.json").write_text('{"model_type": "llama"}')
  with pytest.raises(UserError, match="convert it first: mtpjax convert hf"):
    WorkDir(tmp_path).load_config()


def test_a_byte_order_mark_is_none_of_a_file(tmp_path):
  config = config_lib.Config(data=config_lib.Data(row_length=32))
  place = WorkDir(tmp_path)
  text = json.dumps(config.to_dict())
  place.config.write_text(text, encoding="utf-8-sig")
  assert place.load_config() == config
  place.data.write_text('{"id": "12"}', encoding="utf-8-sig")
  assert place.data_id() == "12"
