"""Metrics of a window of steps, and where they are written."""

import contextlib
import dataclasses
import json
import math
import pathlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mtpjax import staging
from mtpjax.errors import UserError
from mtpjax.train.step import StepMetrics


class Window:
  """Collects the steps since the last line and averages them.

  `loss/offset_m` and `accuracy/offset_m` are sums over sums, so that a mean is
  a mean over all valid targets of the window, whatever the step. `loss` is the
  sum of the `loss/offset_m` of the same line, each times its weight; it is
  without the z-loss. Norms are means over steps. An offset without valid
  targets has neither loss nor accuracy, and adds nothing to `loss`; without
  any targets there is no `loss`.
  """

  def __init__(self, offsets: Sequence[int], weights: Sequence[float] = ()):
    """Starts empty.

    Args:
      offsets: they name the entries.
      weights: of the offsets in the loss; empty means all 1.
    """
    self.offsets = offsets
    self.weights = np.asarray(weights or [1.0] * len(offsets))
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

    def total(values: Any) -> np.ndarray:
      return np.sum([np.asarray(v, np.float64) for v in values], axis=0)

    targets_M = total(s.sums.count_M for s in steps)
    per_offset = {
      name: _over(total(s.sums.per_target()[name] for s in steps), targets_M)
      for name in steps[0].sums.per_target()
    } | {"targets": targets_M}
    scalars: dict[str, float] = {}
    for field in dataclasses.fields(StepMetrics):
      over = field.metadata.get("over")
      values = [getattr(s, field.name) for s in steps]
      if over is None or values[0] is None:
        continue
      value = values[-1] if over == "last" else total(values) / len(steps)
      if field.name.endswith("_M"):
        per_offset[field.name.removesuffix("_M")] = value
      else:
        scalars[field.name] = float(value)
    weights_M = per_offset.get("weight", self.weights)
    losses = {}
    if targets_M.any():
      # An offset without targets adds nothing.
      losses["loss"] = float(
        weights_M @ np.where(targets_M, per_offset["loss"], 0)
      )
    line = (
      losses
      | scalars
      | {
        "tokens_per_sec": tokens_per_step * len(steps) / secs,
        "step_secs": secs / len(steps),
      }
    )
    return line | flatten(per_offset, self.offsets)


def _over(sums: np.ndarray, targets_M: np.ndarray) -> np.ndarray:
  """Divides sums [M] or [M, K] by targets [M]; NaN where there are none."""
  count_M = np.where(targets_M > 0, targets_M, np.nan)
  return sums / count_M.reshape(-1, *(1,) * (sums.ndim - 1))


def flatten(
  per_offset: dict[str, Any], offsets: Sequence[int]
) -> dict[str, float]:
  """Turns {"loss": [..]} into {"loss/offset_1": .., "loss/offset_2": ..}.

  Values [M, K] become "name/offset_1/0" and so on. What is NaN at an offset
  with 0 `targets` is left out: there was nothing to measure.
  """
  targets = per_offset.get("targets", [1] * len(offsets))
  line: dict[str, float] = {}
  for name, values in per_offset.items():
    for offset, value, n in zip(offsets, values, targets, strict=True):
      for place, number in np.ndenumerate(value):
        if n or not np.isnan(number):
          path = "/".join([name, f"offset_{offset}", *map(str, place)])
          line[path] = float(number)
  return line


def per_target_names(values: dict[str, float]) -> list[str]:
  """Returns the names of a line's means per target, readouts included.

  Those with more than one value per offset are too long for the console.
  """
  others = {
    field.name.removesuffix("_M")
    for field in dataclasses.fields(StepMetrics)
    if field.name.endswith("_M")
  } | {"targets"}
  names = dict.fromkeys(("loss", "accuracy"))
  for path in values:
    name, *rest = path.split("/")
    if len(rest) == 1 and rest[0].startswith("offset_"):
      names[name] = None
  return [name for name in names if name not in others]


class JsonLines:
  """`metrics.jsonl`: one object per line, flushed, cut back on a resume."""

  def __init__(self, path: pathlib.Path, resumed_step: int):
    """Opens the file and drops lines after `resumed_step`.

    So is what is no such line: a killed process left its last unfinished.

    Raises:
      UserError: the file cannot be written.
    """
    self._path = path
    kept = []
    if path.is_file():
      for line in path.read_bytes().splitlines():
        try:
          if json.loads(line)["step"] <= resumed_step:
            kept.append(line)
        except (ValueError, KeyError, TypeError, RecursionError):
          continue
    with self._explain_failure():
      with staging.whole_file(path) as part:
        part.write_bytes(b"".join(line + b"\n" for line in kept))
      # Unbuffered: what a full disk did not take is not tried again.
      self._file = path.open("ab", buffering=0)

  def write(self, step: int, kind: str, values: dict[str, float]) -> None:
    """Appends {"step", "kind", ...values}; kind is "train" or "eval".

    Raises:
      UserError: the disk is full, or the like.
    """
    line = {"step": step, "kind": kind} | values
    left = json.dumps(line).encode() + b"\n"
    with self._explain_failure():
      while left:
        left = left[self._file.write(left) :]

  def close(self) -> None:
    """Closes the file."""
    self._file.close()

  @contextlib.contextmanager
  def _explain_failure(self) -> Iterator[None]:
    try:
      yield
    except OSError as error:
      raise UserError(
        f"{self._path}: cannot be written ({error.strerror}); see to that, "
        "then the same command goes on from the last checkpoint"
      ) from error


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
