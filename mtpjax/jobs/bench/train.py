"""`mtpjax bench train`: time of a training step by number of offsets."""

import dataclasses
import statistics
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import rich.console

from mtpjax import parallel
from mtpjax.config import Config
from mtpjax.heads import train_flops_per_token
from mtpjax.jobs.report import OnReport, make_report, print_rows
from mtpjax.progress import Progress
from mtpjax.train import Program
from mtpjax.train.hardware import peak_flops


class _Candidate:
  """The step with offsets 1..n on one synthetic batch."""

  def __init__(self, config: Config, n: int, batch: dict[str, np.ndarray]):
    heads = dataclasses.replace(config.heads, offsets=tuple(range(1, n + 1)))
    config = dataclasses.replace(config, heads=heads)
    mesh = parallel.make_mesh(config.mesh)
    self.n = n
    program = Program.build(config, mesh)
    self.model = program.model
    self.step = program.step()
    self.state = program.create_state()
    self.batch = parallel.place_batch(batch, mesh)
    self.secs: list[float] = []

  def time(self) -> float:
    start = time.perf_counter()
    self.state, metrics = self.step(self.state, self.batch)
    jax.block_until_ready((self.state, metrics))
    return time.perf_counter() - start


def run(
  config: Config,
  console: rich.console.Console,
  n: Sequence[int] = (1, 2, 4, 8),
  repeats: int = 10,
  on_report: OnReport | None = None,
) -> dict[str, Any]:
  """Times whole steps, optimizer included, taking turns between the n.

  Args:
    config: the model; `heads.matched` keeps the parameters equal.
    console: gets a table.
    n: numbers of offsets.
    repeats: timed steps each, after two that are not.
    on_report: called with what is returned as far as it is known, after each
      round.

  Returns:
    `rows` of {"n", "trunk_layers", "step_secs", "tokens_per_sec",
    "flops_per_token", ...}; times are medians.
  """
  shape = config.train.batch_size, config.data.row_length
  random = np.random.default_rng(0)
  batch = {
    "tokens": random.integers(
      0, config.model.vocab_size, shape, dtype=np.int32
    ),
    "segments": np.ones(shape, np.int32),
    "positions": np.broadcast_to(np.arange(shape[1], dtype=np.int32), shape),
    "loss_mask": np.ones(shape, bool),
  }
  report = make_report([], config, {"n": list(n), "repeats": repeats})
  with Progress(console, "making models", len(n)) as progress:
    candidates = []
    for offsets in n:
      candidates.append(_Candidate(config, offsets, batch))
      progress.update(len(candidates))
  mesh = candidates[0].model.mesh
  peak = peak_flops(mesh.devices.flat[0], config.train.peak_tflops)
  rounds = repeats + 2
  with Progress(console, "compiling", rounds * len(n)) as progress:
    for round_ in range(rounds):
      for i, candidate in enumerate(candidates):
        if round_:
          progress.update(text="training steps")
        secs = candidate.time()
        if round_ >= 2:
          candidate.secs.append(secs)
        progress.update(round_ * len(n) + i + 1)
      if round_ >= 2:
        report["rows"] = [
          _row(candidate, candidates[0], shape, peak)
          for candidate in candidates
        ]
        if on_report is not None:
          on_report(report)
  headers = {
    "n": "n",
    "trunk_layers": "trunk layers",
    "step_secs": "step (s)",
    "tokens_per_sec": "tokens/s",
    "flops_per_token": "FLOPs/token",
    "time_over_first": f"time over n={n[0]}",
  }
  if peak is not None:
    headers["mfu"] = "MFU"
  print_rows(console, "training step", report["rows"], headers)
  return report


def _row(
  own: _Candidate,
  first: _Candidate,
  shape: tuple[int, int],
  peak: float | None,
) -> dict[str, Any]:
  """Returns what is known of a candidate by now."""
  step_secs = statistics.median(own.secs)
  rate = shape[0] * shape[1] / step_secs
  flops = train_flops_per_token(own.model, shape[1])
  row = {
    "n": own.n,
    "trunk_layers": own.model.trunk_layers,
    "step_secs": step_secs,
    "tokens_per_sec": rate,
    "flops_per_token": flops,
    "time_over_first": statistics.median(
      a / b for a, b in zip(own.secs, first.secs, strict=True)
    ),
  }
  if peak is not None:
    row["mfu"] = rate * flops / (peak * own.model.mesh.size)
  return row
