"""What a pass costs by the size of its tree, and what drafting costs."""

import dataclasses
import heapq
import statistics
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from mtpjax.decode import Request, Spec, Stages, Tree
from mtpjax.decode.batch import Packer
from mtpjax.decode.drafters import Drafter, NoDrafts, drafting_heads
from mtpjax.evals.speed.pass_parts import draft_secs
from mtpjax.evals.speed.trial import Trial
from mtpjax.heads import MultiTokenModel

_PASSES = 16  # of a timed chunk
COST_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


def spread_tree(nodes: int, depth: int, width: int) -> Tree:
  """Returns a tree of typical shape: deep where ranks are low.

  A path of ranks r comes the sooner the smaller the product of all r + 2 is,
  which is about how the chances of drafts fall.

  Args:
    nodes: root included.
    depth: drafts of a path at most.
    width: candidates per depth at most.

  Returns:
    The tree; it has fewer nodes where depth and width leave no more. The tree
    of more nodes contains that of fewer.
  """
  paths: list[tuple[int, ...]] = []
  frontier: list[tuple[int, tuple[int, ...]]] = []

  def offer(cost: int, path: tuple[int, ...]) -> None:
    if len(path) <= depth and path[-1] < width:
      heapq.heappush(frontier, (cost, path))

  offer(2, (0,))
  while frontier and len(paths) < nodes - 1:
    cost, path = heapq.heappop(frontier)
    paths.append(path)
    rank = path[-1]
    offer(cost // (rank + 2) * (rank + 3), (*path[:-1], rank + 1))
    offer(cost * 2, (*path, 0))
  return Tree.from_rank_paths(paths)


def cost_trees(
  model: MultiTokenModel, sizes: Sequence[int] = COST_SIZES
) -> list[Tree]:
  """Returns a tree of each size that the heads and the vocabulary allow."""
  trees = [
    spread_tree(n, model.heads.chain_length, model.config.vocab_size)
    for n in sizes
  ]
  return [t for t, n in zip(trees, sizes, strict=True) if t.size == n]


def measure_pass_costs(
  model: MultiTokenModel,
  params: Any,
  requests: Sequence[Request],
  trees: Sequence[Tree],
  repeats: int = 5,
  others: Sequence[tuple[Drafter, Tree]] = (),
) -> list[tuple[int, float]]:
  """Times passes of the loop, drafting, verification and commit included.

  All trees have caches of one size, and take turns. No text ends while passes
  are timed.

  Args:
    model: the model.
    params: from `decode_params`.
    requests: one batch. Prompts, temperatures and what else the logits
      pipeline needs count; how much they want to generate does not, and no EOS
      ends a text.
    trees: within reach of the heads; the root alone is plain decoding.
    repeats: rounds.
    others: drafters that do not fill any tree, each with the one it fills.

  Returns:
    Per tree its nodes, root included, and the median seconds of a pass; first
    those of `trees`, then those of `others`.

  Raises:
    UserError: a tree that the heads don't reach.
  """
  deepest = max(tree.max_depth for tree in trees)
  every = [*trees, *(tree for _, tree in others)]
  room = 1 + max(tree.max_depth for tree in every)
  # Each pass may accept all of its drafts; the last one must not end a text.
  new = 2 + _PASSES * room
  requests = [
    dataclasses.replace(
      r, max_new_tokens=new, min_new_tokens=0, stop_sequences=()
    )
    for r in requests
  ]
  stages = Stages.of(requests)
  # Plain decoding keeps no caches of heads; trees share the state of all.
  heads = drafting_heads(model, deepest)
  specs = [
    Spec(
      model, tree, stages, heads if tree.max_depth else NoDrafts(), room=room
    )
    for tree in trees
  ] + [Spec(model, tree, stages, one, room=room) for one, tree in others]
  packer = Packer.of(specs[0], requests, ())
  trials = [Trial(spec, params, packer, requests) for spec in specs]
  # The prompts run once for all programs that keep the same caches.
  by_drafter = {trial.spec.drafter: trial for trial in trials}
  states = {drafter: trial.start() for drafter, trial in by_drafter.items()}
  secs: list[list[float]] = [[] for _ in trials]
  for round_ in range(repeats + 1):
    for trial, times in zip(trials, secs, strict=True):
      state = states[trial.spec.drafter]
      taken, _ = trial.run(jax.tree.map(jnp.copy, state), _PASSES)
      if round_:  # the first round compiles
        times.append(taken / _PASSES)
  return [
    (tree.size, statistics.median(times))
    for tree, times in zip(every, secs, strict=True)
  ]


def measure_draft_secs(
  model: MultiTokenModel,
  params: Any,
  requests: Sequence[Request],
  repeats: int = 5,
) -> float:
  """Times the drafting heads alone, all that a chain can use.

  Args:
    model: the model.
    params: from `decode_params`.
    requests: one batch.
    repeats: rounds.

  Returns:
    Median seconds per pass; 0 for a model without heads to draft with.
  """
  if not model.heads.chain_length:
    return 0.0
  tree = Tree.chain(model.heads.chain_length)
  spec = Spec(model, tree, Stages.of(requests))
  trial = Trial(spec, params, Packer.of(spec, requests, ()), requests)
  draft_secs(trial)  # compiles
  return statistics.median(draft_secs(trial) for _ in range(repeats))
