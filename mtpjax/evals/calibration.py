"""What drafts are worth with a model on this device: measured, then chosen.

Some texts are decoded plainly, and the tokens that came are ranked among the
candidates of the heads. Half of the texts grow trees, the other half judges
them; drafters that no ranks predict decode that half themselves. Passes are
timed on the device. From all of it `budget` chooses.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mtpjax import budget, decode
from mtpjax import config as config_lib
from mtpjax.budget import Entry, Level, PassCosts
from mtpjax.budget.levels import HEADS
from mtpjax.evals.drafts.candidate_ranks import candidate_ranks
from mtpjax.evals.drafts.class_report import decode_texts
from mtpjax.evals.speed.pass_costs import (
  COST_SIZES,
  measure_draft_secs,
  measure_pass_costs,
)
from mtpjax.heads import MultiTokenModel

# Gain below which none is taken: measured costs differ by as much from run to
# run, and drafts that lose cost as much as drafts that win gain.
_MARGIN = 0.1
# (number, temperature) -> requests.
MakeRequests = Callable[[int, float], list[decode.Request]]


@dataclasses.dataclass(frozen=True)
class Ranked:
  """Texts of plain decoding, and the ranks of their tokens."""

  requests: list[decode.Request]
  ranks: list[np.ndarray]


@dataclasses.dataclass(frozen=True)
class Texts:
  """The texts of one temperature.

  Attributes:
    grown_on: they grew the trees.
    judged_on: as many others, which judge them.
    trees: of 1, 2, ... nodes.
    tokens_per_pass: (mode, tree) -> what decoding the second half took, each
      decoded once.
  """

  grown_on: Ranked
  judged_on: Ranked
  trees: list[decode.Tree]
  tokens_per_pass: Callable[[str, decode.Tree], float]


@dataclasses.dataclass(frozen=True)
class Calibrator:
  """Measures a model that has a head to draft with.

  Attributes:
    model: the model.
    params: {"lm": ..., "heads": ...}, stacked.
    decode_params: the same, see `decode.decode_params`.
    eos_ids: ids that end a text.
    settings: of drafters, such as the n-grams of lookup.
    make_requests: what is decoded.
    repeats: timed runs of each pass.
  """

  model: MultiTokenModel
  params: Any
  decode_params: Any
  eos_ids: Sequence[int]
  settings: config_lib.Decode
  make_requests: MakeRequests
  repeats: int

  @property
  def _depths(self) -> int:
    return self.model.heads.chain_length

  @property
  def _widest(self) -> int:
    return min(budget.MISS, self.model.config.vocab_size, 10)

  def texts(self, n: int, temperature: float, max_nodes: int) -> Texts:
    """Decodes texts, and grows trees on half of them.

    Args:
      n: texts, at least 2.
      temperature: 0 is greedy.
      max_nodes: of the largest tree, root included.
    """
    requests = self.make_requests(n, temperature)
    results = self._decode(decode.Tree.root(), requests)
    ranks = candidate_ranks(
      self.model, self.params, requests, results, self._depths
    )
    grown_on, judged_on = (
      Ranked(requests[half::2], ranks[half::2]) for half in (0, 1)
    )

    @functools.cache
    def tokens_per_pass(mode: str, tree: decode.Tree) -> float:
      results = self._decode(tree, judged_on.requests, mode)
      return decode.tokens_per_pass(results) or 1.0

    trees = budget.grow(grown_on.ranks, max_nodes, self._widest)
    return Texts(grown_on, judged_on, trees, tokens_per_pass)

  def _decode(
    self,
    tree: decode.Tree,
    requests: Sequence[decode.Request],
    mode: str = HEADS,
  ) -> list[decode.Result]:
    drafter = None
    if tree.max_depth:
      drafter = decode.MODES[mode].drafter(self.model, self.settings, tree, 0)
    return decode_texts(
      self.model, self.decode_params, tree, requests, self.eos_ids, drafter
    )

  def entry(
    self, texts: Texts, batch: int, temperature: float
  ) -> tuple[Entry, list[Level]]:
    """Times passes of a batch, and chooses.

    Args:
      texts: of this temperature.
      batch: rows decoded together.
      temperature: 0 is greedy.

    Returns:
      The entry, and what drafters other than the heads do.
    """
    requests = self.make_requests(batch, temperature)
    costs, others = self._measure(texts, requests)
    draft_secs = measure_draft_secs(
      self.model, self.decode_params, requests, self.repeats
    )
    ranks = texts.judged_on.ranks
    choice = budget.choose(texts.trees, ranks, costs, _MARGIN, others)
    levels = budget.levels_of(choice, texts.trees, ranks, costs)
    return Entry(batch, temperature, costs, draft_secs, choice, levels), others

  def _measure(
    self, texts: Texts, requests: Sequence[decode.Request]
  ) -> tuple[PassCosts, list[Level]]:
    """Measures passes.

    Returns:
      What nodes and heads cost, each alone, and what other drafters do: their
      tokens per pass are of texts decoded, not predicted.
    """
    # As many nodes, once after all heads and once after one of them.
    deep = decode.Tree.chain(self._depths)
    flat = decode.Tree.from_branching((self._depths,))
    grown = [texts.trees[n - 1] for n in COST_SIZES if n <= len(texts.trees)]
    others = [
      (name, mode, decode.Tree.chain(length))
      for name, mode in decode.MODES.items()
      for length in mode.lengths_tried
    ]
    points = measure_pass_costs(
      self.model, self.decode_params, requests, [deep, flat, *grown],
      self.repeats,
      [
        (mode.drafter(self.model, self.settings, tree, 0), tree)
        for _, mode, tree in others
      ],
    )  # fmt: skip
    n = len(points) - len(others)
    levels = [
      Level(tree, texts.tokens_per_pass(name, tree), secs, name)
      for (name, _, tree), (_, secs) in zip(others, points[n:], strict=True)
    ]
    head_secs = 0.0
    if self._depths > 1:
      head_secs = max(points[0][1] - points[1][1], 0.0) / (self._depths - 1)
    costs = PassCosts(
      tuple(
        # Noise must not make a pass free.
        (nodes, max(secs - tree.max_depth * head_secs, secs / 10))
        for tree, (nodes, secs) in zip(grown, points[2:n], strict=True)
      ),
      head_secs,
    )
    return costs, levels

  def checked(
    self, entry: Entry, others: Sequence[Level]
  ) -> list[tuple[str, Level]]:
    """Returns by name what predictions are compared on; the choice is last."""
    medusa = decode.parse_tree("medusa-63").cut(self._depths)
    known = [("chain", decode.Tree.chain(self._depths))]
    if medusa.width <= self._widest:
      known.append(("medusa-63", medusa))
    return [
      *((name, Level(tree, 1.0, 1.0)) for name, tree in known),
      *((f"{one.mode} {one.tree.max_depth}", one) for one in others),
      ("chosen", entry.choice.level),
    ]

  def check(
    self, texts: Texts, entry: Entry, name: str, level: Level
  ) -> dict[str, Any]:
    """Compares a prediction with decoding texts that it did not see."""
    tree = level.tree
    measured = texts.tokens_per_pass(level.mode, tree)
    if level.mode == HEADS:
      predicted = budget.predicted(tree, texts.grown_on.ranks)
      secs = entry.costs.secs(tree.size, tree.max_depth)
    else:
      predicted, secs = level.tokens_per_pass, level.pass_secs
    return {
      "tree": name,
      "nodes": tree.size,
      "depth": tree.max_depth,
      "predicted": predicted,
      "measured": measured,
      "predicted_over_measured": predicted / measured,
      "speed_over_plain": measured * entry.costs.secs(1) / secs,
    }


def report_entry(
  texts: Texts, entry: Entry, checks: list[dict[str, Any]]
) -> dict[str, Any]:
  """Returns an entry as a reader of the report wants it."""
  choice, ranks = entry.choice, texts.judged_on.ranks
  is_of_heads = choice.mode == HEADS
  return {
    "batch": entry.batch,
    "temperature": entry.temperature,
    "positions": sum(len(r) for r in texts.grown_on.ranks),
    "chosen": choice.to_dict(),
    "reach": budget.reach(choice.tree, ranks).tolist() if is_of_heads else None,
    "draft_secs": entry.draft_secs,
    "curve": budget.curve(texts.trees, ranks, entry.costs),
    "checks": checks,
  }
