"""Whatever a command decodes, ids that the tokenizer lacks never come."""

import pytest

from mtpjax.data.byte_tokenizer import ByteTokenizer
from mtpjax.decode.batch import Packer
from mtpjax.errors import UserError

WORKDIR = "runs/quickstart"
MISSING = frozenset({3, 5})


@pytest.mark.parametrize(
  "command",
  [
    "generate WORKDIR --prompt a --mode chain",
    "evaluate WORKDIR --decode",
    "evaluate WORKDIR --classes code",
    "calibrate WORKDIR --texts 2 --prompt-length 8 --new-tokens 8",
    "calibrate WORKDIR --prompts PROMPTS",
    "bench decode WORKDIR --prompt-length 8 --new-tokens 8",
    "bench decode WORKDIR --classes code --prompts PROMPTS",
  ],
)
def test_requests_of_commands_have_them(
  in_tiny_root, tmp_path, monkeypatch, fails, command
):
  seen = []

  def of(spec, requests, eos_ids):
    seen.extend(requests)
    raise UserError("enough is seen")

  prompts = tmp_path / "prompts.jsonl"
  prompts.write_text('{"text": "a"}\n{"text": "b"}\n')
  monkeypatch.setattr(Packer, "of", of)
  monkeypatch.setattr(ByteTokenizer, "ids", frozenset(range(258)) - MISSING)
  places = {"WORKDIR": WORKDIR, "PROMPTS": prompts}
  line = fails(*(places.get(part, part) for part in command.split()))
  assert "enough is seen" in line
  assert {request.missing_ids for request in seen} == {MISSING}
