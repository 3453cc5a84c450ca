"""`mtpjax evaluate`: quality per offset of a checkpoint, and decoding speed."""

import pathlib
from collections.abc import Sequence
from typing import Any

import rich.console
import rich.table

from mtpjax import api, decode, parallel
from mtpjax.data import Rows
from mtpjax.decode import Stages
from mtpjax.errors import UserError
from mtpjax.evals import (
  PROMPT_CLASSES,
  class_requests,
  held_out_requests,
  make_evaluator,
  measure_decoding,
  mode_specs,
  report_classes,
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
  classes: Sequence[str] = (),
  base: str = "",
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
    classes: of prompts, see `evals.PROMPT_CLASSES`: instead of all this, report
      how often heads predict what the model itself chooses, and what drafts
      bring; see `evals.report_classes`.
    base: the model that heads were trained on; see `api.load`.

  Returns:
    {"step", "split", "offsets", "loss_by_offset", "accuracy_by_offset",
    "targets_by_offset"}; losses in nats per target. With decoding also
    {"tokens_per_pass", "plain_tokens_per_sec", "speculative_tokens_per_sec",
    "ratio", "outputs_identical"}. With
    classes {"step", "classes"}.

  Raises:
    UserError: no such work directory, checkpoint, data or split.
  """
  loaded = api.load(workdir, step, base=base)
  if classes:
    return _by_class(loaded, classes, console)
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


def _by_class(
  loaded: api.Loaded, classes: Sequence[str], console: rich.console.Console
) -> dict[str, Any]:
  """Reports what heads bring on prompts of these classes."""
  depths = loaded.model.heads.chain_length
  if not depths:
    raise UserError(
      f"--classes: heads.offsets {loaded.config.heads.offsets} of "
      f"{loaded.workdir} have no offset 2 to draft with"
    )
  prompts = {}
  for kind in classes:
    if kind not in PROMPT_CLASSES:
      raise UserError(
        f"--classes: {kind!r} is not one of {', '.join(PROMPT_CLASSES)}"
      )
    prompts[kind] = class_requests(
      {kind: [loaded.encode(p, f"class {kind}") for p in PROMPT_CLASSES[kind]]},
      _NEW_TOKENS // 2,
    )
  trees = {
    "chain": decode.Tree.chain(depths),
    "medusa-63": decode.parse_tree("medusa-63").cut(depths),
  }
  with console.status("decoding prompts"):
    rows = report_classes(
      loaded.model, loaded.params, loaded.decode_params, prompts, trees,
      loaded.tokenizer.eos_ids,
    )  # fmt: skip
  table = rich.table.Table(
    title=f"{loaded.workdir}, step {loaded.step}: % of the model's own tokens "
    "that a head ranks first / among its first five; tokens per pass"
  )
  table.add_column("class")
  for offset in loaded.config.heads.offsets[1 : depths + 1]:
    table.add_column(f"offset {offset}", justify="right")
  for name in (*trees, "same"):
    table.add_column(name, justify="right")
  for row in rows:
    both = zip(row["top_1_by_offset"], row["top_5_by_offset"], strict=True)
    table.add_row(
      row["class"],
      *(f"{100 * one:.1f} / {100 * five:.1f}" for one, five in both),
      *(f"{value:.2f}" for value in row["tokens_per_pass"].values()),
      "yes" if row["outputs_identical"] else "NO",
    )
  console.print(table)
  return {"step": loaded.step, "classes": rows}


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
