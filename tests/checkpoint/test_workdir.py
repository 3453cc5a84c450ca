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
