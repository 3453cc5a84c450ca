"""Metrics of a window of steps, and where they are written."""

import json
import math
import pathlib
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from mtpjax.errors import UserError
from mtpjax.train.step import StepMetrics


class Window:
  """Collects the steps since the last line and averages them.

  Losses and accuracies are sums over sums, so that a mean is a mean over
  targets; norms are means over steps.
  """

  def __init__(self, offsets: Sequence[int]):
    """Starts empty; `offsets` name the entries."""
    self.offsets = offsets
    self.steps: list[StepMetrics] = []
    self.start_clock()

  def start_clock(self) -> None:
    """Begins the timed span; called again after work that is not training."""
    self.start = time.monotonic()

  def add(self, metrics: StepMetrics) -> None:
    """Adds the metrics of one step, already on the host."""
    self.steps.append(metrics)

  def close(self, tokens_per_step: int) -> dict[str, float]:
    """Returns the averages as flat names and values, and starts anew."""
    secs = time.monotonic() - self.start
    steps, self.steps = self.steps, []
    self.start_clock()

    def total(pick) -> Any:
      return np.sum([np.asarray(pick(s), np.float64) for s in steps], axis=0)

    def mean(pick) -> Any:
      return total(pick) / len(steps)

    count_M = np.maximum(total(lambda s: s.sums.count_M), 1)
    per_offset = {
      "loss": total(lambda s: s.sums.nll_M) / count_M,
      "accuracy": total(lambda s: s.sums.correct_M) / count_M,
      "targets": total(lambda s: s.sums.count_M),
      "tap_grad_norm": mean(lambda s: s.tap_grad_norm_M),
      "head_grad_norm": mean(lambda s: s.head_grad_norm_M),
    }
    line = {
      "loss": float(mean(lambda s: s.loss)),
      "grad_norm": float(mean(lambda s: s.grad_norm)),
      "clipped_grad_norm": float(mean(lambda s: s.clipped_grad_norm)),
      "learning_rate": float(steps[-1].learning_rate),
      "tokens_per_sec": tokens_per_step * len(steps) / secs,
      "step_secs": secs / len(steps),
    }
    return line | flatten(per_offset, self.offsets)


def flatten(
  per_offset: dict[str, Any], offsets: Sequence[int]
) -> dict[str, float]:
  """Turns {"loss": [..]} into {"loss/offset_1": .., "loss/offset_2": ..}.

  An offset with 0 `targets` has no loss and no accuracy: there is none.
  """
  targets = per_offset.get("targets", [1] * len(offsets))
  return {
    f"{name}/offset_{offset}": float(value)
    for name, values in per_offset.items()
    for offset, value, n in zip(offsets, values, targets, strict=True)
    if n or name not in ("loss", "accuracy")
  }


class JsonLines:
  """`metrics.jsonl`: one object per line, flushed, cut back on a resume."""

  def __init__(self, path: pathlib.Path, resumed_step: int):
    """Opens the file and drops lines after `resumed_step`.

    A last line that a killed process left unfinished is dropped too.
    """
    kept = []
    if path.is_file():
      for line in path.read_text().splitlines():
        try:
          if json.loads(line)["step"] <= resumed_step:
            kept.append(line)
        except (json.JSONDecodeError, KeyError):
          continue
    part = path.with_suffix(".tmp")
    part.write_text("".join(line + "\n" for line in kept))
    part.replace(path)
    self._file = path.open("a")

  def write(self, step: int, kind: str, values: dict[str, float]) -> None:
    """Appends {"step", "kind", ...values}; kind is "train" or "eval"."""
    line = {"step": step, "kind": kind} | values
    self._file.write(json.dumps(line) + "\n")
    self._file.flush()

  def close(self) -> None:
    """Closes the file."""
    self._file.close()


class TensorBoard:
  """Event files through tensorboardX, which needs no TensorFlow."""

  def __init__(self, path: pathlib.Path, resumed_step: int):
    """Starts an event file that hides events after `resumed_step`."""
    try:
      import tensorboardX
    except ImportError as error:
      raise UserError(
        "train.tensorboard: tensorboardX is not installed; "
        "pip install 'mtpjax[tb]'"
      ) from error
    self._writer = tensorboardX.SummaryWriter(
      str(path), purge_step=resumed_step + 1
    )

  def write(self, step: int, kind: str, values: dict[str, float]) -> None:
    """Writes every finite value as a scalar `kind/name`."""
    for name, value in values.items():
      if math.isfinite(value):
        self._writer.add_scalar(f"{kind}/{name}", value, step)
    self._writer.flush()

  def close(self) -> None:
    """Closes the file."""
    self._writer.close()
