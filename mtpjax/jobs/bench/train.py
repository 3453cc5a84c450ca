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
from mtpjax.config import Config, Data, Heads, Loss, Model, Train
from mtpjax.heads import MultiTokenModel, train_flops_per_token
from mtpjax.jobs.bench.report import make_report, print_rows
from mtpjax.train import create_state, make_optimizer, make_train_step
from mtpjax.train.hardware import peak_flops


def default_config() -> Config:
  """A model that a CPU steps through in well under a second."""
  return Config(
    model=Model(vocab_size=4096, d_model=256, n_layers=10, dtype="float32"),
    heads=Heads(kind="block"),
    loss=Loss(chunk_tokens=512),
    data=Data(row_length=128),
    train=Train(batch_size=4),
  )


class _Candidate:
  """The step with offsets 1..n on one synthetic batch."""

  def __init__(self, config: Config, n: int, batch: dict[str, np.ndarray]):
    heads = dataclasses.replace(config.heads, offsets=tuple(range(1, n + 1)))
    config = dataclasses.replace(config, heads=heads)
    mesh = parallel.make_mesh(config.mesh)
    self.n = n
    self.model = MultiTokenModel(config.model, heads, mesh)
    optimizer = make_optimizer(config.optim, self.model.abstract())
    self.step = make_train_step(self.model, optimizer, config)
    self.state = create_state(self.model, optimizer, jax.random.key(0))
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
) -> dict[str, Any]:
  """Times whole steps, optimizer included, taking turns between the n.

  Args:
    config: the model; `heads.matched` keeps the parameters equal.
    console: gets a table.
    n: numbers of offsets.
    repeats: timed steps each, after two that are not.

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
  candidates = [_Candidate(config, offsets, batch) for offsets in n]
  for round_ in range(repeats + 2):
    for candidate in candidates:
      secs = candidate.time()
      if round_ >= 2:
        candidate.secs.append(secs)
  mesh = candidates[0].model.mesh
  peak = peak_flops(mesh.devices.flat[0], config.train.peak_tflops)
  rows = []
  for candidate in candidates:
    step_secs = statistics.median(candidate.secs)
    rate = shape[0] * shape[1] / step_secs
    flops = train_flops_per_token(candidate.model, shape[1])
    row = {
      "n": candidate.n,
      "trunk_layers": candidate.model.trunk_layers,
      "step_secs": step_secs,
      "tokens_per_sec": rate,
      "flops_per_token": flops,
      "time_over_first": statistics.median(
        a / b for a, b in zip(candidate.secs, candidates[0].secs, strict=True)
      ),
    }
    if peak is not None:
      row["mfu"] = rate * flops / (peak * mesh.size)
    rows.append(row)
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
  print_rows(console, "training step", rows, headers)
  return make_report(rows, config, {"n": list(n), "repeats": repeats})
