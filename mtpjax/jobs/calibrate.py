"""`mtpjax calibrate`: what drafts are worth, with this model on this device."""

import contextlib
import functools
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import rich.console

from mtpjax import api
from mtpjax.budget import Calibration, Entry, device_name
from mtpjax.checkpoint import WorkDir
from mtpjax.data import Rows
from mtpjax.decode import Request
from mtpjax.errors import UserError
from mtpjax.evals import class_requests, figures, held_out_requests
from mtpjax.evals.calibration import Calibrator, MakeRequests, report_entry
from mtpjax.jobs.prompts import read_class_prompts
from mtpjax.jobs.report import OnReport, make_report, print_rows
from mtpjax.progress import Progress, print_line


def _alone(run: Callable[..., Any]) -> Callable[..., Any]:
  """Nothing else writes into the work directory while `run` runs."""

  @functools.wraps(run)
  def alone(
    workdir: str | pathlib.Path, console: rich.console.Console, *args, **options
  ) -> Any:
    say = functools.partial(print_line, console)
    place = WorkDir(workdir)
    with place.hold(say) if place.path.is_dir() else contextlib.nullcontext():
      return run(workdir, console, *args, **options)

  return alone


@_alone
def run(
  workdir: str | pathlib.Path,
  console: rich.console.Console,
  step: int | None = None,
  batches: Sequence[int] = (1, 8),
  temperatures: Sequence[float] = (0.0,),
  texts: int = 32,
  prompt_length: int = 64,
  new_tokens: int = 128,
  max_nodes: int = 128,
  repeats: int = 5,
  prompts: pathlib.Path | None = None,
  data_path: str = "",
  base: str = "",
  on_report: OnReport | None = None,
) -> dict[str, Any]:
  """Calibrates a checkpoint and saves the result in its work directory.

  Half of the texts grow the trees; the other half judges them.

  Args:
    workdir: of `mtpjax train` or `mtpjax convert`.
    console: gets tables and the decision.
    step: the checkpoint; None takes the latest.
    batches: rows decoded together, an entry each.
    temperatures: an entry each; 0 is greedy.
    texts: prompts to decode, at least 2.
    prompt_length: tokens of a held-out prompt.
    new_tokens: tokens decoded after each.
    max_nodes: of the largest tree, root included.
    repeats: timed runs of each pass.
    prompts: a file of prompts to decode, whole, instead of held-out rows; the
      first `texts` of them, see `jobs.prompts.read_class_prompts`.
    data_path: prepared rows; empty takes those of the run.
    base: the model that heads were trained on; see `api.load`.
    on_report: called with what is returned as far as it is known, after each
      entry.

  Returns:
    Per entry the choice, its costs and curve, and predictions beside what
    what decoding gave.

  Raises:
    UserError: no such run, no heads to draft with, too few held-out rows or
      prompts.
  """
  if prompts is not None and data_path:
    raise UserError(
      f"--prompts {prompts}: are decoded instead of rows; leave --data-path out"
    )
  with Progress(console, f"loading {workdir}"):
    loaded = api.load(workdir, step, base=base)
  place = WorkDir(workdir)
  _require_heads(loaded)
  if not os.access(place.path, os.W_OK):
    raise UserError(f"{place.path}: cannot be written to; copy it elsewhere")
  if prompts is None:
    rows = loaded.open_rows("validation", data_path)
    make_requests = _of_rows(
      rows, prompt_length, new_tokens, loaded.missing_ids
    )
  else:
    own = _own_prompts(loaded, prompts)
    texts = min(texts, len(own))
    make_requests = _of_prompts(own, new_tokens, loaded.missing_ids)
  calibrator = Calibrator(
    loaded.model, loaded.params, loaded.decode_params, loaded.eos_ids,
    loaded.config.decode, make_requests, repeats,
  )  # fmt: skip
  entries: list[Entry] = []
  result = make_report(
    [],
    loaded.config,
    {
      "texts": texts,
      "step": loaded.step,
      "prompts": str(prompts) if prompts else None,
    },
  )
  for temperature in temperatures:
    with Progress(
      console, f"decoding {texts} texts at temperature {temperature:g}"
    ):
      decoded = calibrator.texts(texts, temperature, max_nodes)
    for batch in batches:
      with Progress(console, f"measuring passes of {batch} rows"):
        entry, others = calibrator.entry(decoded, batch, temperature)
      entries.append(entry)
      named = calibrator.checked(entry, others)
      checks = []
      with Progress(console, "decoding with trees", len(named)) as progress:
        for name, level in named:
          progress.update(text=f"decoding with trees: {name}")
          checks.append(calibrator.check(decoded, entry, name, level))
          progress.update(len(checks))
      result["rows"].append(report_entry(decoded, entry, checks))
      _print(console, entry, checks)
      if on_report is not None:
        on_report(result)
  _save(place, loaded.step, entries, result, console)
  return result


def _require_heads(loaded: api.Loaded) -> None:
  heads = loaded.model.heads
  if not heads.chain_length:
    raise UserError(
      f"calibrate: heads.offsets {heads.offsets} have no offset 2 to draft "
      "with; mode next or lookup is all there is to use"
    )


def _own_prompts(loaded: api.Loaded, prompts: pathlib.Path) -> list[list[int]]:
  own = [
    loaded.encode(prompt, f"prompts {prompts}")
    for of_class in read_class_prompts(prompts).values()
    for prompt in of_class
  ]
  if len(own) < 2:
    raise UserError(
      f"--prompts {prompts}: half of the texts judge what the others gave; "
      "give two prompts or more"
    )
  return own


def _save(
  place: WorkDir,
  step: int,
  entries: list[Entry],
  result: dict[str, Any],
  console: rich.console.Console,
) -> None:
  """Saves the calibration, and a figure of it where that can be drawn."""
  Calibration(step, device_name(), tuple(entries)).save(
    place.calibration, result
  )
  print_line(console, f"saved {place.calibration}")
  figure = place.calibration.with_suffix(".png")
  try:
    figures.save_budget_figure(figure, result["rows"])
    print_line(console, f"and {figure}")
  except UserError as error:
    print_line(console, f"no figure: {error}")


def _of_rows(
  rows: Rows, prompt_length: int, new_tokens: int, missing_ids: frozenset[int]
) -> MakeRequests:
  """Returns what makes requests of held-out rows."""
  length = min(prompt_length, rows.row_length // 2)

  def make(n: int, temperature: float) -> list[Request]:
    return held_out_requests(
      rows, n, length, new_tokens, missing_ids, temperature
    )

  return make


def _of_prompts(
  prompts: list[list[int]], new_tokens: int, missing_ids: frozenset[int]
) -> MakeRequests:
  """Returns what makes requests of prompts, from the first when they end."""

  def make(n: int, temperature: float) -> list[Request]:
    taken = [prompts[i % len(prompts)] for i in range(n)]
    return class_requests(
      {"prompts": taken}, new_tokens, missing_ids, temperature
    )

  return make


def _print(
  console: rich.console.Console, entry: Entry, checks: list[dict[str, Any]]
) -> None:
  plain = entry.costs.secs(1)
  sizes = [n for n, _ in entry.costs.points]
  costs = ", ".join(f"{n}: {entry.costs.secs(n) / plain:.2f}" for n in sizes)
  print_line(
    console,
    f"batch {entry.batch}, temperature {entry.temperature}: a plain pass takes "
    f"{1e3 * plain:.3g} ms, drafting {1e3 * entry.draft_secs:.3g} ms; cost of "
    f"a pass by nodes, in plain passes: {costs}; each head adds "
    f"{entry.costs.head_secs / plain:.2f}",
  )
  print_rows(
    console,
    "tokens per pass on held-out texts",
    checks,
    {
      "tree": "tree", "nodes": "nodes", "depth": "depth",
      "predicted": "predicted", "measured": "measured",
      "predicted_over_measured": "ratio", "speed_over_plain": "speed",
    },
  )  # fmt: skip
  print_line(console, f"use {entry.choice.reason}")
  chain, chosen = checks[0], checks[-1]
  lead = chain["speed_over_plain"] - chosen["speed_over_plain"]
  if lead > 0 and chosen["nodes"] > 1:
    print_line(
      console,
      f"on the texts decoded here the chain was {lead:.2f}x ahead; the choice "
      "was made on predictions, and texts differ",
    )
