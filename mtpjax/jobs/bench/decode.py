"""`mtpjax bench decode`: speed of decoding modes against bare passes."""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import rich.console

from mtpjax import parallel
from mtpjax.config import Config, Heads, Model
from mtpjax.decode import Request, decode_params
from mtpjax.evals.decode_speed import measure
from mtpjax.heads import MultiTokenModel
from mtpjax.jobs.bench.report import make_report, print_rows

MakeRequests = Callable[[int, float], list[Request]]


def default_config() -> Config:
  """A small random model."""
  return Config(
    model=Model(vocab_size=4096, d_model=256, n_layers=8, dtype="float32"),
    heads=Heads(kind="block"),
  )


def run(
  config: Config,
  console: rich.console.Console,
  workdir: str | pathlib.Path | None = None,
  batches: Sequence[int] = (1, 4),
  temperatures: Sequence[float] = (0.0,),
  modes: Sequence[str] = ("next", "chain"),
  prompt_length: int = 64,
  new_tokens: int = 128,
  repeats: int = 5,
) -> dict[str, Any]:
  """Measures a trained model on held-out prompts, or a random one.

  Args:
    config: the random model; not used with a `workdir`.
    console: gets a table.
    workdir: of `mtpjax train`.
    batches: prompts decoded together.
    temperatures: 0 is greedy.
    modes: the first is what others are compared with.
    prompt_length: tokens of a prompt.
    new_tokens: tokens generated per prompt.
    repeats: rounds; times are medians.

  Returns:
    `rows`: per batch, temperature and mode the fields of
    `evals.decode_speed.ModeSpeed`.
  """
  if workdir is None:
    model, params, make_requests = _random_model(
      config, prompt_length, new_tokens
    )
  else:
    config, model, params, make_requests = _trained_model(
      workdir, prompt_length, new_tokens
    )
  rows = []
  for batch in batches:
    for temperature in temperatures:
      requests = make_requests(batch, temperature)
      for speed in measure(model, params, requests, modes, repeats):
        rows.append(
          {"batch": batch, "temperature": temperature}
          | dataclasses.asdict(speed)
        )
  print_rows(
    console,
    "decoding; ms per pass: in the loop, trunk alone, trunk and heads alone",
    [row | _milliseconds(row) for row in rows],
    {
      "batch": "B",
      "temperature": "temp",
      "mode": "mode",
      "tokens_per_pass": "tok/pass",
      "tokens_per_sec": "tok/s",
      "pass": "loop",
      "bare": "trunk",
      "bare_draft": "+heads",
      "pass_over_bare_draft": "ratio",
      "speed_over_first": "speed",
      "outputs_identical": "same",
    },
  )
  settings = {
    "workdir": str(workdir) if workdir else None,
    "prompt_length": prompt_length,
    "new_tokens": new_tokens,
    "repeats": repeats,
  }
  return make_report(rows, config, settings)


def _milliseconds(row: dict[str, Any]) -> dict[str, float]:
  return {
    "pass": 1e3 * row["pass_secs"],
    "bare": 1e3 * row["bare_pass_secs"],
    "bare_draft": 1e3 * row["bare_draft_pass_secs"],
  }


def _random_model(
  config: Config, prompt_length: int, new_tokens: int
) -> tuple[MultiTokenModel, Any, MakeRequests]:
  mesh = parallel.single_device_mesh()
  model = MultiTokenModel(config.model, config.heads, mesh)
  params = decode_params(model, model.init(jax.random.key(0)))

  def make_requests(batch: int, temperature: float) -> list[Request]:
    prompts = np.random.default_rng(0).integers(
      0, config.model.vocab_size, (batch, prompt_length)
    )
    return [
      Request(tuple(prompt.tolist()), new_tokens, temperature, 0, i)
      for i, prompt in enumerate(prompts)
    ]

  return model, params, make_requests


def _trained_model(
  workdir: str | pathlib.Path, prompt_length: int, new_tokens: int
) -> tuple[Config, MultiTokenModel, Any, MakeRequests]:
  # Only here: random models need neither data nor checkpoints installed.
  from mtpjax import api
  from mtpjax.evals.prompts import held_out_requests

  loaded = api.load(workdir)
  rows = loaded.open_rows("validation")

  def make_requests(batch: int, temperature: float) -> list[Request]:
    return held_out_requests(
      rows, batch, prompt_length, new_tokens, temperature
    )

  return loaded.config, loaded.model, loaded.decode_params, make_requests
