"""`mtpjax evaluate`: quality per offset of a checkpoint, and decoding speed."""

import pathlib
from typing import Any

import rich.console
import rich.table

from mtpjax import api, parallel
from mtpjax.data import Rows
from mtpjax.decode import Stages
from mtpjax.errors import UserError
from mtpjax.evals import (
  held_out_requests,
  make_evaluator,
  measure_decoding,
  mode_specs,
)

_PROMPTS = 8
_NEW_TOKENS = 192


def run(
  workdir: str | pathlib.Path,
  console: rich.console.Console,
  step: int | None = None,
  split: str = "validation",
  batches: int = 0,
  data_path: str = "",
  with_decoding: bool = False,
) -> dict[str, Any]:
  """Evaluates a checkpoint on prepared rows.

  Args:
    workdir: of `mtpjax train`.
    console: gets a table.
    step: the checkpoint; None takes the latest.
    split: "validation" or "train".
    batches: how many at most; 0 takes all rows.
    data_path: prepared rows; empty takes those of the run.
    with_decoding: also decode held-out prompts, one at a time, with the
      next-token head alone and self-speculatively.

  Returns:
    {"step", "split", "offsets", "loss_by_offset", "accuracy_by_offset",
    "targets_by_offset"}; losses in nats per target. With decoding also
    {"tokens_per_pass", "plain_tokens_per_sec", "speculative_tokens_per_sec",
    "ratio", "outputs_identical"}.

  Raises:
    UserError: no such work directory, checkpoint, data or split.
  """
  loaded = api.load(workdir, step)
  config = loaded.config
  rows = loaded.open_rows(split, data_path)
  if not len(rows):
    raise UserError(f"split {split} of {rows.path}: has no rows to evaluate on")
  mesh = loaded.model.mesh
  parallel.check_batch(config.train.batch_size, mesh, "train.batch_size")
  evaluate = make_evaluator(
    loaded.model, config.loss, rows, config.train.batch_size,
    batches or -(-len(rows) // config.train.batch_size),
  )  # fmt: skip
  values = evaluate(loaded.params)
  figures = {
    "step": loaded.step,
    "split": split,
    "offsets": list(config.heads.offsets),
    "loss_by_offset": values["loss"].tolist(),
    "accuracy_by_offset": values["accuracy"].tolist(),
    "targets_by_offset": values["targets"].tolist(),
  }
  table = rich.table.Table(
    title=f"{workdir}, step {loaded.step}, {split} rows", show_header=False
  )
  table.add_column()
  table.add_column(justify="right")
  for i, offset in enumerate(config.heads.offsets):
    table.add_row(
      f"offset {offset}: loss (nats), accuracy",
      f"{values['loss'][i]:.3f}, {values['accuracy'][i]:.1%}",
    )
  if with_decoding:
    decoding = _decode(loaded, rows, console)
    figures |= decoding
    table.add_row("tokens per pass", f"{decoding['tokens_per_pass']:.2f}")
    table.add_row(
      "tokens/s, next-token head", f"{decoding['plain_tokens_per_sec']:,.0f}"
    )
    table.add_row(
      "tokens/s, self-speculative",
      f"{decoding['speculative_tokens_per_sec']:,.0f}",
    )
    table.add_row("ratio", f"{decoding['ratio']:.2f}")
    table.add_row(
      "outputs identical", "yes" if decoding["outputs_identical"] else "NO"
    )
  console.print(table)
  return figures


def _decode(
  loaded: api.Loaded, rows: Rows, console: rich.console.Console
) -> dict[str, Any]:
  """Decodes prompts one by one with both modes, taking turns."""
  requests = held_out_requests(
    rows, _PROMPTS, min(64, loaded.config.data.row_length // 2), _NEW_TOKENS
  )
  specs = mode_specs(loaded.model, ("next", "chain"), Stages.of(requests))
  with console.status("decoding held-out prompts"):
    plain, chain = measure_decoding(
      loaded.decode_params, requests, specs, repeats=3, with_details=False
    )
  return {
    "tokens_per_pass": chain.acceptance.tokens_per_pass,
    "plain_tokens_per_sec": plain.tokens_per_sec,
    "speculative_tokens_per_sec": chain.tokens_per_sec,
    "ratio": chain.tokens_per_sec / plain.tokens_per_sec,
    "outputs_identical": chain.outputs_identical,
    "prompts": len(requests),
    "new_tokens": _NEW_TOKENS,
  }
