"""`mtpjax evaluate`: loss and accuracy per offset of a checkpoint."""

import pathlib
from typing import Any

import rich.console
import rich.table

from mtpjax import api, parallel
from mtpjax.data import open_rows
from mtpjax.errors import UserError
from mtpjax.evals import make_evaluator


def run(
  workdir: str | pathlib.Path,
  console: rich.console.Console,
  step: int | None = None,
  split: str = "validation",
  batches: int = 0,
  data_path: str = "",
) -> dict[str, Any]:
  """Evaluates a checkpoint on prepared rows.

  Args:
    workdir: of `mtpjax train`.
    console: gets a table.
    step: the checkpoint; None takes the latest.
    split: "validation" or "train".
    batches: how many at most; 0 takes all rows.
    data_path: prepared rows; empty takes those of the run.

  Returns:
    {"step", "split", "offsets", "loss_by_offset", "accuracy_by_offset",
    "targets_by_offset"}; losses in nats per target.

  Raises:
    UserError: no such work directory, checkpoint, data or split.
  """
  loaded = api.load(workdir, step)
  config = loaded.config
  rows = open_rows(data_path or config.data.path, split)
  if not len(rows):
    raise UserError(f"split {split} of {rows.path}: has no rows to evaluate on")
  mesh = loaded.model.mesh
  parallel.check_batch(config.train.batch_size, mesh, "train.batch_size")
  evaluate = make_evaluator(
    loaded.model, config.loss, rows, config.train.batch_size,
    batches or -(-len(rows) // config.train.batch_size),
  )  # fmt: skip
  values = evaluate(loaded.params)
  table = rich.table.Table(title=f"step {loaded.step}, {split} rows")
  for name in ("offset", "loss (nats)", "accuracy", "targets"):
    table.add_column(name, justify="right")
  for i, offset in enumerate(config.heads.offsets):
    table.add_row(
      str(offset),
      f"{values['loss'][i]:.4f}",
      f"{values['accuracy'][i]:.4f}",
      f"{values['targets'][i]:,.0f}",
    )
  console.print(table)
  return {
    "step": loaded.step,
    "split": split,
    "offsets": list(config.heads.offsets),
    "loss_by_offset": values["loss"].tolist(),
    "accuracy_by_offset": values["accuracy"].tolist(),
    "targets_by_offset": values["targets"].tolist(),
  }
