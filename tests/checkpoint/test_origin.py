"""The positions of imported models, as their runs have them written down."""

import json

import pytest

from mtpjax.checkpoint import imported_length
from mtpjax.errors import UserError


@pytest.mark.parametrize(
  "origin, length",
  [({"max_length": 8192}, 8192), ({"max_length": 0}, 0), ({}, 0), (None, 0)],
)
def test_positions_are_read_where_they_are_known(tmp_path, origin, length):
  if origin is not None:
    (tmp_path / "origin.json").write_text(json.dumps(origin))
  assert imported_length(tmp_path) == length


@pytest.mark.parametrize("text", ["{", "[]", '{"max_length": "many"}'])
def test_a_damaged_origin_is_one_line(tmp_path, text):
  (tmp_path / "origin.json").write_text(text)
  with pytest.raises(UserError, match="origin.json.*convert it anew") as error:
    imported_length(tmp_path)
  assert "\n" not in str(error.value)
