"""Windows of steps, the lines they become, and event files."""

import json
import struct

import numpy as np
import pytest

from mtpjax.errors import UserError
from mtpjax.losses import OffsetSums
from mtpjax.train import StepMetrics, flatten
from mtpjax.train.metrics import JsonLines, TensorBoard, Window


def step_metrics(nll, correct, count, norm, rate=0.1):
  return StepMetrics(
    loss=np.float32(norm * 2),
    sums=OffsetSums(np.array(nll), np.array(correct), np.array(count)),
    grad_norm=np.float32(norm),
    clipped_grad_norm=np.float32(min(norm, 1)),
    tap_grad_norm_M=np.array([norm, 2 * norm]),
    head_grad_norm_M=np.array([3 * norm, 4 * norm]),
    learning_rate=np.float32(rate),
    is_finite=np.bool_(True),
  )


def test_means_over_a_window_are_sums_over_sums():
  window = Window((1, 3))
  window.add(step_metrics([10.0, 4.0], [1, 0], [5, 0], norm=0.5))
  window.add(step_metrics([2.0, 6.0], [9, 2], [95, 20], norm=2.5, rate=0.2))
  line = window.close(tokens_per_step=100)
  assert line["loss/offset_1"] == pytest.approx(12 / 100)  # not (2 + .02) / 2
  assert line["loss/offset_3"] == pytest.approx(10 / 20)
  assert line["accuracy/offset_1"] == pytest.approx(10 / 100)
  assert line["accuracy/offset_3"] == pytest.approx(2 / 20)
  assert (line["targets/offset_1"], line["targets/offset_3"]) == (100, 20)
  assert line["grad_norm"] == pytest.approx(1.5)
  assert line["clipped_grad_norm"] == pytest.approx(0.75)
  # Of the losses of this very line, not a mean of steps.
  assert line["loss"] == pytest.approx(12 / 100 + 10 / 20)
  assert line["tap_grad_norm/offset_3"] == pytest.approx(3.0)
  assert line["head_grad_norm/offset_1"] == pytest.approx(4.5)
  assert line["learning_rate"] == pytest.approx(0.2)
  assert line["tokens_per_sec"] == pytest.approx(100 / line["step_secs"])
  # The next window knows nothing of this one.
  window.add(step_metrics([3.0, 0.0], [1, 0], [4, 0], norm=1.0))
  line = window.close(100)
  assert line["loss/offset_1"] == pytest.approx(0.75)
  assert line["targets/offset_3"] == 0 and line["loss"] == pytest.approx(0.75)
  assert "loss/offset_3" not in line and "accuracy/offset_3" not in line
  assert all(isinstance(value, float) for value in line.values())
  window.add(step_metrics([0.0, 0.0], [0, 0], [0, 0], norm=1.0))
  assert not [n for n in window.close(100) if n.startswith(("loss", "accur"))]


def test_the_loss_of_a_line_weighs_its_offsets():
  window = Window((1, 3), weights=(1.0, 0.5))
  window.add(step_metrics([10.0, 4.0], [1, 0], [5, 2], norm=0.5))
  window.add(step_metrics([2.0, 6.0], [9, 2], [95, 20], norm=2.5))
  line = window.close(100)
  assert line["loss"] == pytest.approx(
    line["loss/offset_1"] + 0.5 * line["loss/offset_3"]
  )


def test_counts_beyond_int32_and_float32_add_up():
  window = Window((1,))
  for _ in range(3):
    window.add(
      step_metrics([2.0], [2**30 + 1], [2**30 + 1], norm=1.0).replace(
        tap_grad_norm_M=np.ones(1), head_grad_norm_M=np.ones(1)
      )
    )
  line = window.close(1)
  assert line["targets/offset_1"] == 3 * (2**30 + 1)
  assert line["accuracy/offset_1"] == 1


def test_flatten_names_values_by_offset():
  assert flatten({"loss": [1, 2], "n": np.array([3, 4])}, (1, 5)) == {
    "loss/offset_1": 1.0, "loss/offset_5": 2.0,
    "n/offset_1": 3.0, "n/offset_5": 4.0,
  }  # fmt: skip


def test_lines_behind_the_resumed_step_and_half_lines_go(tmp_path):
  path = tmp_path / "metrics.jsonl"
  lines = JsonLines(path, 0)
  for step in (2, 4, 6):
    lines.write(step, "train", {"loss": 1 / step})
  lines.write(4, "eval", {"loss": 0.5})
  lines.close()
  whole = path.read_text().splitlines()
  assert json.loads(whole[0]) == {"step": 2, "kind": "train", "loss": 0.5}
  for tail in ("", '{"step": 4, "kind": "tr', '{"step"', "{", "\n\n"):
    path.write_text("\n".join(whole) + "\n" + tail)
    resumed = JsonLines(path, 4)
    resumed.write(5, "train", {"loss": 0.25})
    # On the disk at once: a killed process loses no line.
    kept = path.read_text().splitlines()
    assert kept[:-1] == [whole[0], whole[1], whole[3]]
    assert json.loads(kept[-1]) == {"step": 5, "kind": "train", "loss": 0.25}
    resumed.close()
  assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_one_line_and_loses_none():
  with pytest.raises(UserError, match="/dev/full: cannot be written .No space"):
    lines = JsonLines.__new__(JsonLines)
    lines._path, lines._file = "/dev/full", open("/dev/full", "ab", buffering=0)
    lines.write(1, "train", {"loss": 1.0})
  lines.close()  # nothing is tried again


def test_a_fresh_run_begins_a_new_file(tmp_path):
  path = tmp_path / "metrics.jsonl"
  JsonLines(path, 0).close()
  assert path.read_text() == ""


def records(folder):
  """Yields (step, tag, value) of all event files."""
  from tensorboardX.proto import event_pb2

  for file in sorted(folder.iterdir()):
    raw = file.read_bytes()
    while raw:
      (size,) = struct.unpack("<Q", raw[:8])
      event = event_pb2.Event.FromString(raw[12 : 12 + size])
      for value in event.summary.value:
        yield event.step, value.tag, value.simple_value
      raw = raw[16 + size :]


def test_event_files_hold_every_finite_value(tmp_path):
  board = TensorBoard(tmp_path / "tb", 0)
  board.write(3, "train", {"loss": 0.5, "loss/offset_2": 0.25, "x": np.nan})
  board.write(3, "eval", {"loss": 1.5})
  board.close()
  assert list(records(tmp_path / "tb")) == [
    (3, "train/loss", 0.5), (3, "train/loss/offset_2", 0.25),
    (3, "eval/loss", 1.5),
  ]  # fmt: skip
