"""`mtpjax bench attention`."""

import json

from mtpjax import cli


def test_rows_for_every_length_mask_and_implementation(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  argv = ["bench", "attention", "--lengths", "16,24", "--repeats", "1"]
  argv += ["--model.d-head", "8", "--json", "a.json"]
  assert cli.main(argv) == 0
  rows = json.loads((tmp_path / "a.json").read_text())["rows"]
  assert [(r["length"], r["mask"], r["implementation"]) for r in rows] == [
    (length, mask, implementation)
    for length in (16, 24)
    for mask in ("causal", "packed")
    for implementation in ("full", "blocks")
  ]
  for row in rows:
    assert row["forward_secs"] > 0 and row["backward_secs"] > 0
    assert row["temp_bytes"] > 0 and row["batch"] == 1


def test_an_implementation_that_there_is_not_is_one_line(fails):
  line = fails("bench", "attention", "--implementations", "full,flash")
  assert "'flash' is not one of full, blocks, cudnn" in line
