"""What is in a work directory, sound or not."""

import json
import os
import shutil

import pytest

from mtpjax import checkpoint, cli

WORKDIR = "runs/quickstart"


@pytest.fixture
def inspect(in_tiny_root, tmp_path, monkeypatch, capsys):
  """Inspects; returns the figures and what was printed. Reads no weights."""
  monkeypatch.setattr(checkpoint.Store, "restore", None)

  def run(workdir):
    out = tmp_path / "inspected.json"
    capsys.readouterr()
    assert not cli.main(["inspect", str(workdir), "--json", str(out)])
    return json.loads(out.read_text()), capsys.readouterr().out

  return run


@pytest.fixture
def copy(in_tiny_root, tmp_path):
  run = tmp_path / "run"
  shutil.copytree(WORKDIR, run)
  return run


def test_all_parts_of_a_run(inspect, in_tiny_root):
  found, printed = inspect(WORKDIR)
  assert found["model"]["layers"] == 4 and found["model"]["vocabulary"] == 258
  assert found["heads"]["kind"] == "block"
  assert found["heads"]["offsets"] == [1, 2, 3]
  parameters = found["parameters"]
  assert parameters["total"] == parameters["lm"] + parameters["heads"]
  assert found["tokenizer"] == {
    "kind": "bytes", "vocabulary": 258, "bos_id": 256, "eos_ids": [257],
    "chat_template": False,
  }  # fmt: skip
  steps = found["checkpoints"]["steps"]
  assert list(steps) == ["6", "12"]
  files = [
    os.path.getsize(os.path.join(folder, name))
    for folder, _, names in os.walk(f"{WORKDIR}/checkpoints")
    for name in names
  ]
  assert sum(step["bytes"] for step in steps.values()) == sum(files)
  assert found["disk"]["checkpoints_bytes"] == sum(files)
  assert found["disk"]["bytes"] > sum(files)
  prepared = json.loads((in_tiny_root / "prepared.json").read_text())
  assert prepared["id"].startswith(found["data"]["fingerprint"])
  assert found["data"]["is_there"]
  assert found["base"] is found["calibration"] is found["origin"] is None
  assert "eos ids 257" in printed
  lines = printed.splitlines()
  assert len(lines) == 1 + len(found) - 1


@pytest.mark.parametrize(
  "file, text, part, words",
  [
    ("data.json", "{", "data", "damaged"),
    ("data.json", "[]", "data", "damaged"),
    ("data.json", None, "data", "data.json"),
    ("origin.json", "3", "origin", "damaged"),
    ("calibration.json", "{}", "calibration", "is damaged"),
    ("tokenizer.json", "{", "tokenizer", ""),
  ],
)
def test_a_part_that_is_damaged_does_not_hide_the_others(
  inspect, copy, file, text, part, words
):
  if part == "tokenizer":
    config = json.loads((copy / "config.json").read_text())
    config["data"]["tokenizer"] = "tokenizer.json"
    (copy / "config.json").write_text(json.dumps(config))
  if text is None:
    (copy / file).unlink()
  else:
    (copy / file).write_text(text)
  found, printed = inspect(copy)
  assert words in found[part]["error"]
  [line] = [line for line in printed.splitlines() if "ERROR" in line]
  assert line.split()[0] == part
  assert list(found["checkpoints"]["steps"]) == ["6", "12"]


def test_checkpoints_may_be_in_pieces_or_missing(inspect, copy):
  marker = copy / "checkpoints" / "12" / checkpoint.store._MARKER
  marker.write_text("{")
  found, printed = inspect(copy)
  steps = found["checkpoints"]["steps"]
  assert steps["12"]["is_damaged"] and "is_damaged" not in steps["6"]
  shutil.rmtree(copy / "checkpoints")
  found, printed = inspect(copy)
  assert found["checkpoints"] == {"steps": {}} and "steps none" in printed
  assert found["disk"]["checkpoints_bytes"] == 0


def test_what_is_no_work_directory_is_one_line(
  in_tiny_root, tmp_path, fails, copy
):
  assert "not there" in fails("inspect", tmp_path / "none")
  assert "config.json" in fails("inspect", "corpus")
  assert "tiny.py" in fails("inspect", "tiny.py")
  for text in ("{", "[]", '{"model": 3}'):
    (copy / "config.json").write_text(text)
    fails("inspect", copy)
