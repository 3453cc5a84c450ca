"""Metrics of a window of steps, and where they are written."""

import contextlib
import json
import math
import pathlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

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

    def total(pick) -> Any:
      return np.sum([np.asarray(pick(s), np.float64) for s in steps], axis=0)

    def mean(pick) -> Any:
      return total(pick) / len(steps)

    targets_M = total(lambda s: s.sums.count_M)
    count_M = np.maximum(targets_M, 1)
    loss_M = total(lambda s: s.sums.nll_M) / count_M
    per_offset = {
      "loss": loss_M,
      "accuracy": total(lambda s: s.sums.correct_M) / count_M,
      "targets": targets_M,
      "tap_grad_norm": mean(lambda s: s.tap_grad_norm_M),
      "head_grad_norm": mean(lambda s: s.head_grad_norm_M),
    }
    losses = {"loss": float(self.weights @ loss_M)} if targets_M.any() else {}
    line = losses | {
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
    part = path.with_suffix(".tmp")
    with self._explain_failure():
      part.write_bytes(b"".join(line + b"\n" for line in kept))
      part.replace(path)
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
