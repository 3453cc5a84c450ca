"""`mtpjax calibrate`: what drafts are worth, with this model on this device."""

import contextlib
import dataclasses
import functools
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import rich.console

from mtpjax import api, budget, decode
from mtpjax.budget import Calibration, Entry, Level, PassCosts, device_name
from mtpjax.budget.levels import HEADS
from mtpjax.checkpoint import WorkDir
from mtpjax.data import Rows
from mtpjax.errors import UserError
from mtpjax.evals import class_requests, figures, held_out_requests
from mtpjax.evals.drafts.candidate_ranks import candidate_ranks
from mtpjax.evals.drafts.class_report import decode_texts
from mtpjax.evals.speed.pass_costs import (
  COST_SIZES,
  measure_draft_secs,
  measure_pass_costs,
)
from mtpjax.jobs.prompts import read_class_prompts
from mtpjax.jobs.report import OnReport, make_report, print_rows
from mtpjax.progress import Progress, print_line

# Gain below which none is taken: measured costs differ by as much from run to
# run, and drafts that lose cost as much as drafts that win bring.
_MARGIN = 0.1
# (number, temperature) -> requests.
MakeRequests = Callable[[int, float], list[decode.Request]]
# (mode, tree) -> tokens per pass.
Measured = Callable[[str, decode.Tree], float]


@dataclasses.dataclass(frozen=True)
class _Ranked:
  """Texts of plain decoding, and the ranks of their tokens."""

  requests: list[decode.Request]
  ranks: list[np.ndarray]


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
    decoding brought.

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
  model = loaded.model
  depths = model.heads.chain_length
  if not depths:
    raise UserError(
      f"calibrate: heads.offsets {model.heads.offsets} have no offset 2 to "
      "draft with; mode next or lookup is all there is to use"
    )
  place = WorkDir(workdir)
  if not os.access(place.path, os.W_OK):
    raise UserError(f"{place.path}: cannot be written to; copy it elsewhere")
  if prompts is None:
    rows = loaded.open_rows("validation", data_path)
    make_requests = _of_rows(
      rows, prompt_length, new_tokens, loaded.missing_ids
    )
  else:
    own = [
      loaded.encode(prompt, f"prompts {prompts}")
      for of_class in read_class_prompts(prompts).values()
      for prompt in of_class
    ]
    texts = min(texts, len(own))
    if texts < 2:
      raise UserError(
        f"--prompts {prompts}: half of the texts judge what the others bring; "
        "give two prompts or more"
      )
    make_requests = _of_prompts(own, new_tokens, loaded.missing_ids)
  rank = _Ranker(loaded, make_requests, texts, depths)
  widest = min(budget.MISS, model.config.vocab_size, 10)
  entries: list[Entry] = []
  report: list[dict[str, Any]] = []
  for temperature in temperatures:
    with Progress(
      console, f"decoding {texts} texts at temperature {temperature:g}"
    ):
      grown_on, judged_on = rank(temperature)
    trees = budget.grow(grown_on.ranks, max_nodes, widest)
    known = _known_trees(depths, widest)
    tried: dict[tuple[str, decode.Tree], float] = {}
    measured = functools.partial(_tokens_per_pass, loaded, judged_on, tried)
    for batch in batches:
      requests = make_requests(batch, temperature)
      with Progress(console, f"measuring passes of {batch} rows"):
        costs, others = _measure(loaded, requests, trees, repeats, measured)
        draft_secs = measure_draft_secs(
          model, loaded.decode_params, requests, repeats
        )
      choice = budget.choose(trees, judged_on.ranks, costs, _MARGIN, others)
      levels = budget.ladder(choice, trees, judged_on.ranks, costs)
      entry = Entry(batch, temperature, costs, draft_secs, choice, levels)
      entries.append(entry)
      named = [
        *((name, Level(tree, 1.0, 1.0)) for name, tree in known),
        *((f"{one.mode} {one.tree.max_depth}", one) for one in others),
        ("chosen", choice.level),
      ]
      checks = []
      with Progress(console, "decoding with trees", len(named)) as progress:
        for name, level in named:
          progress.update(text=f"decoding with trees: {name}")
          checks.append(_check(name, level, costs, grown_on, measured))
          progress.update(len(checks))
      report.append(
        {
          "batch": batch,
          "temperature": temperature,
          "positions": sum(len(r) for r in grown_on.ranks),
          "chosen": choice.to_dict(),
          "reach": budget.reach(choice.tree, judged_on.ranks).tolist()
          if choice.mode == HEADS
          else None,
          "draft_secs": draft_secs,
          "curve": budget.curve(trees, judged_on.ranks, costs),
          "checks": checks,
        }
      )
      _print(console, entry, report[-1])
      settings = {
        "texts": texts,
        "step": loaded.step,
        "prompts": str(prompts) if prompts else None,
      }
      result = make_report(report, loaded.config, settings)
      if on_report is not None:
        on_report(result)
  figure = place.calibration.with_suffix(".png")
  Calibration(loaded.step, device_name(), tuple(entries)).save(
    place.calibration, result
  )
  print_line(console, f"saved {place.calibration}")
  try:
    figures.save_budget_figure(figure, report)
    print_line(console, f"and {figure}")
  except UserError as error:
    print_line(console, f"no figure: {error}")
  return result


def _of_rows(
  rows: Rows, prompt_length: int, new_tokens: int, missing_ids: frozenset[int]
) -> MakeRequests:
  """Returns what makes requests of held-out rows."""
  length = min(prompt_length, rows.row_length // 2)

  def make(n: int, temperature: float) -> list[decode.Request]:
    return held_out_requests(
      rows, n, length, new_tokens, missing_ids, temperature
    )

  return make


def _of_prompts(
  prompts: list[list[int]], new_tokens: int, missing_ids: frozenset[int]
) -> MakeRequests:
  """Returns what makes requests of prompts, from the first when they end."""

  def make(n: int, temperature: float) -> list[decode.Request]:
    taken = [prompts[i % len(prompts)] for i in range(n)]
    return class_requests(
      {"prompts": taken}, new_tokens, missing_ids, temperature
    )

  return make


class _Ranker:
  """Decodes prompts plainly and ranks what came."""

  def __init__(
    self,
    loaded: api.Loaded,
    make_requests: MakeRequests,
    texts: int,
    depths: int,
  ):
    self._loaded = loaded
    self._make_requests = make_requests
    self._texts = texts
    self._depths = depths

  def __call__(self, temperature: float) -> tuple[_Ranked, _Ranked]:
    """Returns texts to grow trees on, and as many to judge them by."""
    requests = self._make_requests(self._texts, temperature)
    results = _decode(self._loaded, decode.Tree.root(), requests)
    ranks = candidate_ranks(
      self._loaded.model, self._loaded.params, requests, results, self._depths
    )
    return (
      _Ranked(requests[::2], ranks[::2]),
      _Ranked(requests[1::2], ranks[1::2]),
    )


def _decode(
  loaded: api.Loaded, tree: decode.Tree, requests: Sequence[decode.Request]
) -> list[decode.Result]:
  return decode_texts(
    loaded.model, loaded.decode_params, tree, requests,
    loaded.eos_ids,
  )  # fmt: skip


def _measure(
  loaded: api.Loaded,
  requests: Sequence[decode.Request],
  trees: Sequence[decode.Tree],
  repeats: int,
  measured: Measured,
) -> tuple[PassCosts, list[Level]]:
  """Measures passes.

  Returns:
    What nodes and heads cost, told apart, and what other drafters do: their
    tokens per pass are of texts decoded, not predicted.
  """
  depths = loaded.model.heads.chain_length
  # As many nodes, once after all heads and once after one of them.
  deep, flat = decode.Tree.chain(depths), decode.Tree.from_branching((depths,))
  grown = [trees[n - 1] for n in COST_SIZES if n <= len(trees)]
  others = [
    (name, mode, decode.Tree.chain(length))
    for name, mode in decode.MODES.items()
    for length in mode.lengths_tried
  ]
  points = measure_pass_costs(
    loaded.model, loaded.decode_params, requests, [deep, flat, *grown], repeats,
    [
      (mode.drafter(loaded.model, loaded.config.decode, tree, 0), tree)
      for _, mode, tree in others
    ],
  )  # fmt: skip
  n = len(points) - len(others)
  levels = [
    Level(tree, measured(name, tree), secs, name)
    for (name, _, tree), (_, secs) in zip(others, points[n:], strict=True)
  ]
  head_secs = 0.0
  if depths > 1:
    head_secs = max(points[0][1] - points[1][1], 0.0) / (depths - 1)
  costs = PassCosts(
    tuple(
      # Noise must not make a pass free.
      (nodes, max(secs - tree.max_depth * head_secs, secs / 10))
      for tree, (nodes, secs) in zip(grown, points[2:n], strict=True)
    ),
    head_secs,
  )
  return costs, levels


def _known_trees(depths: int, widest: int) -> list[tuple[str, decode.Tree]]:
  """Returns the chain, and Medusa's tree where it fits."""
  medusa = decode.parse_tree("medusa-63").cut(depths)
  trees = [("chain", decode.Tree.chain(depths))]
  return [*trees, ("medusa-63", medusa)] if medusa.width <= widest else trees


def _tokens_per_pass(
  loaded: api.Loaded,
  judged_on: _Ranked,
  tried: dict[tuple[str, decode.Tree], float],
  mode: str,
  tree: decode.Tree,
) -> float:
  """Decodes texts with a drafter and a tree, once."""
  if (mode, tree) not in tried:
    drafter = decode.MODES[mode].drafter(
      loaded.model, loaded.config.decode, tree, 0
    )
    results = decode_texts(
      loaded.model, loaded.decode_params, tree, judged_on.requests,
      loaded.eos_ids, drafter if tree.max_depth else None,
    )  # fmt: skip
    tried[mode, tree] = decode.tokens_per_pass(results) or 1.0
  return tried[mode, tree]


def _check(
  name: str,
  level: Level,
  costs: PassCosts,
  grown_on: _Ranked,
  measured: Measured,
) -> dict[str, Any]:
  """Compares a prediction with decoding texts it did not see."""
  tree, found = level.tree, measured(level.mode, level.tree)
  if level.mode == HEADS:
    predicted = budget.predicted(tree, grown_on.ranks)
    secs = costs.secs(tree.size, tree.max_depth)
  else:
    predicted, secs = level.tokens_per_pass, level.pass_secs
  return {
    "tree": name,
    "nodes": tree.size,
    "depth": tree.max_depth,
    "predicted": predicted,
    "measured": found,
    "predicted_over_measured": predicted / found,
    "speed_over_plain": found * costs.secs(1) / secs,
  }


def _print(
  console: rich.console.Console, entry: Entry, report: dict[str, Any]
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
    report["checks"],
    {
      "tree": "tree", "nodes": "nodes", "depth": "depth",
      "predicted": "predicted", "measured": "measured",
      "predicted_over_measured": "ratio", "speed_over_plain": "speed",
    },
  )  # fmt: skip
  print_line(console, f"use {entry.choice.reason}")
  chain, chosen = report["checks"][0], report["checks"][-1]
  lead = chain["speed_over_plain"] - chosen["speed_over_plain"]
  if lead > 0 and chosen["nodes"] > 1:
    print_line(
      console,
      f"on the texts decoded here the chain was {lead:.2f}x ahead; the choice "
      "was made on predictions, and texts differ",
    )
