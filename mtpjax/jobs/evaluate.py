"""`mtpjax evaluate`: quality per offset of a checkpoint, and decoding speed."""

import functools
import itertools
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import rich.console
import rich.table
import rich.text

from mtpjax import api, budget, decode, parallel
from mtpjax.checkpoint import WorkDir
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
from mtpjax.progress import Progress, print_line

_SELF_SPECULATIVE = "chain"
_PROMPTS = 8
_NEW_TOKENS = 192
_REPEATS = 3


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
      next-token head alone, self-speculatively, by lookup, by both merged, and
      with what `mtpjax calibrate` chose on this device, if it did.
    classes: of prompts, see `evals.PROMPT_CLASSES`: instead of all this, report
      how often heads predict what the model itself chooses, and what drafts
      gain; see `evals.report_classes`.
    base: the model that heads were trained on; see `api.load`.

  Returns:
    {"step", "split", "offsets", "loss_by_offset", "accuracy_by_offset",
    "targets_by_offset"}; losses in nats per target, None where an offset has
    none (and where a loss is no finite number). With decoding also
    {"tokens_per_pass", "plain_tokens_per_sec", "speculative_tokens_per_sec",
    "ratio", "outputs_identical"}, the ratios over plain decoding, and the same
    of "lookup_...", "merged_..." and, after a calibration, "auto_...". With
    classes {"step", "classes"}.

  Raises:
    UserError: no such work directory, checkpoint, data or split, a split
      without rows, or too few rows to decode.
  """
  _require_classes(classes)
  with Progress(console, f"loading {workdir}"):
    loaded = api.load(workdir, step, base=base)
  if classes:
    return _by_class(loaded, classes, console)
  rows = loaded.open_rows(split, data_path)
  _require_rows(rows)
  decode_too = None
  if with_decoding:  # what it cannot do, it says before it works
    requests = held_out_requests(
      rows, _PROMPTS, min(64, rows.row_length // 2), _NEW_TOKENS,
      loaded.missing_ids,
    )  # fmt: skip
    specs = _specs(loaded, workdir, Stages.of(requests))
    decode_too = functools.partial(_decode, loaded, requests, specs, console)
  figures: dict[str, Any] = {
    "step": loaded.step,
    "split": split,
    "offsets": list(loaded.config.heads.offsets),
  } | _by_offset(loaded, rows, batches, console)
  table = rich.table.Table(
    title=rich.text.Text(f"{workdir}, step {loaded.step}, {split} rows"),
    show_header=False,
  )
  table.add_column()
  table.add_column(justify="right")
  for i, offset in enumerate(figures["offsets"]):
    text = "none"
    if figures["targets_by_offset"][i]:
      loss, accuracy = (
        _shown(figures[f"{name}_by_offset"][i], form, "not finite")
        for name, form in (("loss", ".3f"), ("accuracy", ".1%"))
      )
      text = f"{loss}, {accuracy}"
    table.add_row(f"offset {offset}: loss (nats), accuracy", text)
  if decode_too is not None:
    decoding = decode_too()
    figures |= decoding
    _add_decoding(table, decoding, list(specs)[1:])
  console.print(table)
  return figures


def _by_offset(
  loaded: api.Loaded, rows: Rows, batches: int, console: rich.console.Console
) -> dict[str, Any]:
  """Returns loss, accuracy and number of targets of each offset."""
  config, batch_size = loaded.config, loaded.config.train.batch_size
  parallel.check_batch(batch_size, loaded.model.mesh, "train.batch_size")
  n_batches = -(-len(rows) // batch_size)
  n_batches = min(batches or n_batches, n_batches)
  with Progress(
    console, f"evaluating batches of {rows.split} rows", n_batches
  ) as progress:
    evaluate = make_evaluator(
      loaded.model, config.loss, rows, batch_size, n_batches,
      functools.partial(print_line, console), progress.update,
    )  # fmt: skip
    values = evaluate(loaded.params)
  for offset, loss, n in zip(
    config.heads.offsets, values["loss"], values["targets"], strict=True
  ):
    if n and not math.isfinite(loss):
      print_line(console, f"WARNING: the loss of offset {offset} is {loss}")
  return {
    "loss_by_offset": _finite(values["loss"]),
    "accuracy_by_offset": _finite(values["accuracy"]),
    "targets_by_offset": values["targets"].tolist(),
  }


def _add_decoding(
  table: rich.table.Table, decoding: dict[str, Any], modes: Sequence[str]
) -> None:
  """Adds rows of what `_decode` found."""
  plain = decoding["plain_tokens_per_sec"]
  table.add_row("tokens/s, next-token head", f"{plain:,.0f}")
  for mode in modes:
    prefix = _prefix(mode)
    drafts = mode if prefix else "self-speculative"
    speed = decoding[f"{prefix or 'speculative_'}tokens_per_sec"]
    table.add_row(
      f"{drafts}: tokens per pass, tokens/s, ratio",
      f"{decoding[f'{prefix}tokens_per_pass']:.2f}, {speed:,.0f}, "
      f"{decoding[f'{prefix}ratio']:.2f}",
    )
  table.add_row(
    "outputs identical", "yes" if decoding["outputs_identical"] else "NO"
  )


def _finite(values: np.ndarray) -> list[float | None]:
  """Returns what JSON can hold."""
  return [x if math.isfinite(x) else None for x in values.tolist()]


def _shown(value: float | None, form: str, missing: str = "none") -> str:
  return missing if value is None else format(value, form)


def _require_rows(rows: Rows) -> None:
  if len(rows):
    return
  other = {"validation": "train", "train": "validation"}[rows.split]
  raise UserError(
    f"split {rows.split} of {rows.path}: has no rows to evaluate on; give "
    f"--split {other}, or --data-path with rows of other text, prepared with "
    "the run's tokenizer (--data.validation-fraction and "
    "--data.validation-sources of `mtpjax prepare` hold some out)"
  )


def _require_classes(classes: Sequence[str]) -> None:
  for kind in classes:
    if kind not in PROMPT_CLASSES:
      raise UserError(
        f"--classes: {kind!r} is not one of {', '.join(PROMPT_CLASSES)}"
      )


def _by_class(
  loaded: api.Loaded, classes: Sequence[str], console: rich.console.Console
) -> dict[str, Any]:
  """Reports what heads are worth on prompts of these classes."""
  depths = loaded.model.heads.chain_length
  if not depths:
    raise UserError(
      f"--classes: heads.offsets {loaded.config.heads.offsets} of "
      f"{loaded.workdir} have no offset 2 to draft with"
    )
  prompts = {}
  for kind in classes:
    prompts[kind] = class_requests(
      {kind: [loaded.encode(p, f"class {kind}") for p in PROMPT_CLASSES[kind]]},
      _NEW_TOKENS // 2,
      loaded.missing_ids,
    )
  trees = {
    "chain": decode.Tree.chain(depths),
    "medusa-63": decode.parse_tree("medusa-63").cut(depths),
  }
  with Progress(
    console, "decoding classes of prompts", len(prompts) * (1 + len(trees))
  ) as progress:
    rows = report_classes(
      loaded.model, loaded.params, loaded.decode_params, prompts, trees,
      loaded.eos_ids, progress.update,
    )  # fmt: skip
  table = rich.table.Table(
    title=rich.text.Text(
      f"{loaded.workdir}, step {loaded.step}: % of the model's own tokens "
      "that a head ranks first / among its first five; tokens per pass"
    )
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
      *(f"{_percent(one)} / {_percent(five)}" for one, five in both),
      *(_shown(value, ".2f") for value in row["tokens_per_pass"].values()),
      "yes" if row["outputs_identical"] else "NO",
    )
  console.print(table)
  for row in rows:
    if None in (*row["top_1_by_offset"], *row["tokens_per_pass"].values()):
      print_line(
        console,
        f"WARNING: class {row['class']}: the model ended its texts after "
        f"{row['tokens']} tokens in all, too few for some of the figures",
      )
  return {"step": loaded.step, "classes": rows}


def _percent(share: float | None) -> str:
  return _shown(None if share is None else 100 * share, ".1f")


def _decode(
  loaded: api.Loaded,
  requests: Sequence[decode.Request],
  specs: Mapping[str, decode.Spec],
  console: rich.console.Console,
) -> dict[str, Any]:
  """Decodes prompts one by one with all modes, taking turns."""
  with Progress(
    console, "decoding held-out prompts", (_REPEATS + 1) * len(specs)
  ) as progress:
    rounds = itertools.count(1)
    plain, *drafted = measure_decoding(
      loaded.decode_params, requests, specs, repeats=_REPEATS,
      with_details=False, on_round=lambda: progress.update(next(rounds)),
    )  # fmt: skip
  figures: dict[str, Any] = {"plain_tokens_per_sec": plain.tokens_per_sec}
  for mode, speed in zip(list(specs)[1:], drafted, strict=True):
    prefix = _prefix(mode)
    figures |= {
      f"{prefix}tokens_per_pass": speed.acceptance.tokens_per_pass,
      f"{prefix or 'speculative_'}tokens_per_sec": speed.tokens_per_sec,
      f"{prefix}ratio": speed.tokens_per_sec / plain.tokens_per_sec,
    }
  return figures | {
    "outputs_identical": all(speed.outputs_identical for speed in drafted),
    "prompts": len(requests),
    "new_tokens": _NEW_TOKENS,
  }


def _specs(
  loaded: api.Loaded, workdir: str | pathlib.Path, stages: Stages
) -> dict[str, decode.Spec]:
  """Returns plain decoding, the drafters, and what calibration chose if any."""
  modes, chosen = ["next", _SELF_SPECULATIVE, "lookup", "merged"], None
  path = WorkDir(workdir).calibration
  if path.is_file():
    calibration = budget.Calibration.load(path)
    if calibration.is_of_this_device:
      modes.append("auto")
      chosen = calibration.level(1, 0.0)
  return mode_specs(loaded.model, modes, stages, calibrated=chosen)


def _prefix(mode: str) -> str:
  """Returns what names of figures begin with; nothing for the heads alone."""
  return f"{mode}_".replace(f"{_SELF_SPECULATIVE}_", "")
