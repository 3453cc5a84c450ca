"""`mtpjax calibrate`: what drafts are worth, with this model on this device."""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import rich.console

from mtpjax import api, decode
from mtpjax.checkpoint import WorkDir
from mtpjax.decode import budget
from mtpjax.decode.calibration import Calibration, Entry, device_name
from mtpjax.decode.levels import PassCosts
from mtpjax.errors import UserError
from mtpjax.evals import figures, held_out_requests
from mtpjax.evals.candidate_ranks import candidate_ranks
from mtpjax.evals.pass_costs import measure_draft_secs, measure_pass_costs
from mtpjax.jobs.bench.report import make_report, print_rows

_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
_BATCH = 8  # texts decoded together to be ranked


@dataclasses.dataclass(frozen=True)
class _Ranked:
  """Texts of plain decoding, and the ranks of their tokens."""

  requests: list[decode.Request]
  ranks: list[np.ndarray]


def run(
  workdir: str | pathlib.Path,
  console: rich.console.Console,
  step: int | None = None,
  batches: Sequence[int] = (1,),
  temperatures: Sequence[float] = (0.0,),
  texts: int = 32,
  prompt_length: int = 64,
  new_tokens: int = 128,
  max_nodes: int = 128,
  repeats: int = 5,
) -> dict[str, Any]:
  """Calibrates a checkpoint and saves the result in its work directory.

  Half of the texts grow the trees; the other half judges them.

  Args:
    workdir: of `mtpjax train`.
    console: gets tables and the decision.
    step: the checkpoint; None takes the latest.
    batches: rows decoded together, an entry each.
    temperatures: an entry each; 0 is greedy.
    texts: held-out prompts to decode, at least 2.
    prompt_length: tokens of a prompt.
    new_tokens: tokens decoded behind each.
    max_nodes: of the largest tree, root included.
    repeats: timed runs of each pass.

  Returns:
    Per entry the choice, its costs and curve, and predictions beside what
    decoding brought.

  Raises:
    UserError: no such run, no heads to draft with, too few held-out rows.
  """
  loaded = api.load(workdir, step)
  model = loaded.model
  depths = model.heads.chain_length
  if not depths:
    raise UserError(
      f"calibrate: heads.offsets {model.heads.offsets} have no offset 2 to "
      "draft with; mode next or lookup is all there is to use"
    )
  prompt_length = min(prompt_length, loaded.config.data.row_length // 2)
  rows = loaded.open_rows("validation")
  rank = _Ranker(loaded, rows, texts, prompt_length, new_tokens, depths)
  widest = min(budget.MISS, model.config.vocab_size, 10)
  entries, report = [], []
  for temperature in temperatures:
    with console.status(
      f"decoding held-out texts at temperature {temperature}"
    ):
      grown_on, judged_on = rank(temperature)
    trees = budget.grow(grown_on.ranks, max_nodes, widest)
    measured = [trees[n - 1] for n in _SIZES if n <= len(trees)]
    for batch in batches:
      requests = rank.requests(temperature, batch)
      with console.status(f"measuring passes of {batch} rows"):
        costs = PassCosts(
          tuple(
            measure_pass_costs(
              model, loaded.decode_params, requests, measured, repeats
            )
          )
        )
        draft_secs = measure_draft_secs(
          model, loaded.decode_params, requests, repeats
        )
      choice = budget.choose(trees, judged_on.ranks, costs)
      levels = budget.ladder(choice, trees, judged_on.ranks, costs)
      entry = Entry(batch, temperature, costs, draft_secs, choice, levels)
      entries.append(entry)
      with console.status("decoding with the trees"):
        checks = [
          _check(loaded, name, tree, costs, grown_on, judged_on)
          for name, tree in _known_trees(depths, widest, choice.tree)
        ]
      report.append(
        {
          "batch": batch,
          "temperature": temperature,
          "positions": sum(len(r) for r in grown_on.ranks),
          "chosen": choice.to_dict(),
          "draft_secs": draft_secs,
          "curve": budget.curve(trees, judged_on.ranks, costs),
          "checks": checks,
        }
      )
      _print(console, entry, report[-1])
  place = WorkDir(workdir)
  figure = place.calibration.with_suffix(".png")
  result = make_report(
    report, loaded.config, {"texts": texts, "step": loaded.step}
  )
  Calibration(loaded.step, device_name(), tuple(entries)).save(
    place.calibration, result
  )
  console.print(f"saved {place.calibration}", highlight=False)
  try:
    figures.save_budget_figure(figure, report)
    console.print(f"and {figure}", highlight=False)
  except UserError as error:
    console.print(f"no figure: {error}", highlight=False)
  return result


class _Ranker:
  """Decodes held-out prompts plainly and ranks what came."""

  def __init__(self, loaded, rows, texts, prompt_length, new_tokens, depths):
    self._loaded = loaded
    self._rows = rows
    self._texts = texts
    self._lengths = (prompt_length, new_tokens)
    self._depths = depths

  def requests(self, temperature: float, n: int) -> list[decode.Request]:
    return held_out_requests(self._rows, n, *self._lengths, temperature)

  def __call__(self, temperature: float) -> tuple[_Ranked, _Ranked]:
    """Returns texts to grow trees on, and as many to judge them by."""
    requests = self.requests(temperature, self._texts)
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
  spec = decode.Spec(loaded.model, tree, decode.Stages.of(requests))
  results: dict[int, decode.Result] = {}
  for latest in decode.generate(
    [spec], loaded.decode_params, requests, loaded.tokenizer.eos_ids,
    min(_BATCH, len(requests)), 64,
  ):  # fmt: skip
    results |= latest
  return [results[i] for i in range(len(requests))]


def _known_trees(
  depths: int, widest: int, chosen: decode.Tree
) -> list[tuple[str, decode.Tree]]:
  """Returns the chain, Medusa's tree where it fits, and the chosen tree."""
  medusa = decode.parse_tree("medusa-63").cut(depths)
  trees = [("chain", decode.Tree.chain(depths))]
  if medusa.width <= widest:
    trees.append(("medusa-63", medusa))
  return [*trees, ("chosen", chosen)]


def _check(
  loaded: api.Loaded,
  name: str,
  tree: decode.Tree,
  costs: PassCosts,
  grown_on: _Ranked,
  judged_on: _Ranked,
) -> dict[str, Any]:
  """Compares a prediction with decoding texts it did not see."""
  results = _decode(loaded, tree, judged_on.requests)
  # The prompt's own pass brings one token, whatever is drafted.
  measured = sum(len(r.ids) - 1 for r in results) / max(
    sum(r.passes - 1 for r in results), 1
  )
  predicted = budget.tokens_per_pass(tree, grown_on.ranks)
  return {
    "tree": name,
    "nodes": tree.size,
    "depth": tree.max_depth,
    "predicted": predicted,
    "measured": measured,
    "predicted_over_measured": predicted / measured,
    "speed_over_plain": measured * costs.secs(1) / costs.secs(tree.size),
  }


def _print(
  console: rich.console.Console, entry: Entry, report: dict[str, Any]
) -> None:
  plain = entry.costs.secs(1)
  sizes = [n for n, _ in entry.costs.points]
  costs = ", ".join(f"{n}: {entry.costs.secs(n) / plain:.2f}" for n in sizes)
  console.print(
    f"batch {entry.batch}, temperature {entry.temperature}: a plain pass takes "
    f"{1e3 * plain:.3g} ms, drafting {1e3 * entry.draft_secs:.3g} ms; cost of "
    f"a pass by nodes, in plain passes: {costs}",
    highlight=False,
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
  console.print(f"use {entry.choice.reason}", highlight=False)
  chain, chosen = report["checks"][0], report["checks"][-1]
  if chosen["speed_over_plain"] < chain["speed_over_plain"]:
    console.print(
      "the chain was faster on these texts: "
      f"{chain['speed_over_plain']:.2f}x over "
      f"{chosen['speed_over_plain']:.2f}x; the choice was made on predictions "
      "and the difference is within what texts differ by, or of a plain "
      "decoding that no tree beats",
      highlight=False,
    )
