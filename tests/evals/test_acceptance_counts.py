"""Counts of drafts, against a walk through every pass of a text."""

import numpy as np
import pytest

from mtpjax.decode import Result, Tree
from mtpjax.evals import count_acceptance

TREES = [Tree.chain(3), Tree.from_branching((3, 2)), Tree.root()]


def random_passes(tree, rng, n, idle_share=0.0):
  """Per pass the accepted nodes in order, or None where nothing is drafted."""
  passes = []
  for _ in range(n):
    if rng.random() < idle_share:
      passes.append(None)
      continue
    path = tree.paths_QJ[rng.integers(tree.size)]
    passes.append([int(node) for node in dict.fromkeys(path) if node])
  return passes


def result_of(tree, passes, is_cut):
  """What decoding would report of these passes, prefill first."""
  origins, proposed = [0], 0
  for accepted in passes:
    origins += [*(accepted or []), 0]
    proposed += tree.size - 1 if accepted is not None else 0
  if is_cut:  # the budget ends the text before the last token of the pass
    origins.pop()
  zeros = (0,) * len(origins)
  return Result(
    zeros, zeros, "length", 1 + len(passes), proposed, tuple(origins)
  )


@pytest.mark.parametrize("tree", TREES)
def test_every_count_is_that_of_a_walk(tree):
  rng = np.random.default_rng(0)
  rows = [random_passes(tree, rng, n, 0.3) for n in (9, 5, 12)]
  # A pass that is cut must have accepted something, or it would bring nothing.
  cuts = [bool(row[-1]) for row in rows]
  counts = count_acceptance(
    tree, [result_of(tree, *row) for row in zip(rows, cuts, strict=True)]
  )
  walked = [accepted for row in rows for accepted in row]
  drafted = [accepted for accepted in walked if accepted is not None]
  n_drafting = len(drafted) if tree.size > 1 else 0
  assert counts.passes == 3 + len(walked)
  assert counts.proposed == sum(tree.size - 1 for _ in drafted)
  assert counts.accepted == sum(map(len, drafted))
  assert counts.tokens == counts.passes + counts.accepted - sum(cuts)
  # The prompts' own passes and their tokens are no matter of drafts.
  assert counts.tokens_per_pass == (counts.tokens - 3) / (counts.passes - 3)
  assert counts.drafting_passes == n_drafting
  for depth, share in enumerate(counts.acceptance_by_offset, start=1):
    reached = [len(accepted) >= depth for accepted in drafted]
    assert share == pytest.approx(np.mean(reached))
  assert len(counts.acceptance_by_offset) == tree.max_depth
  assert len(counts.acceptance_by_node) == tree.size
  assert counts.acceptance_by_node[0] == 1
  for node, share in enumerate(counts.acceptance_by_node[1:], start=1):
    taken = [node in accepted for accepted in drafted]
    assert share == pytest.approx(np.mean(taken))
  written = len(walked) * (tree.max_depth + 1)
  kept = sum(1 + len(a or []) for a in walked) - sum(cuts)
  assert counts.cache_rows_written == written
  assert counts.cache_rows_dropped == written - kept


def test_a_text_without_any_draft_has_no_shares():
  tree = Tree.chain(2)
  counts = count_acceptance(tree, [result_of(tree, [None, None], False)])
  assert (counts.proposed, counts.drafting_passes, counts.accepted) == (0, 0, 0)
  assert counts.acceptance_by_offset == (None, None)
  assert counts.acceptance_by_node == (1, None, None)
  assert counts.tokens_per_pass == 1
