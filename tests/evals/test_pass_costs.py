"""What passes cost: everything about it but the clock."""

import numpy as np
import pytest
from tiny import multi_token_model

from mtpjax.config import Heads
from mtpjax.decode import Request, Tree, decode_params
from mtpjax.evals import cost_trees, measure_draft_secs, measure_pass_costs
from mtpjax.evals.speed.pass_costs import spread_tree
from mtpjax.evals.speed.trial import Trial

MODEL = multi_token_model(heads_config=Heads(offsets=(1, 2, 3), matched=False))


@pytest.mark.parametrize("depth, width", [(1, 200), (3, 4), (4, 1)])
def test_spread_trees_take_the_paths_of_the_smallest_products(depth, width):
  most = sum(width**d for d in range(depth + 1))
  sizes = [n for n in (1, 2, 5, 20, 85) if n <= most]
  before = set()
  for n in sizes:
    tree = spread_tree(n, depth, width)
    paths = set(tree.rank_paths)
    assert tree.size == n and before <= paths
    assert all(len(p) <= depth and max(p) < width for p in paths)
    before = paths
  if most == 85:  # all there are
    assert spread_tree(99, depth, width).size == 85
  paths = spread_tree(20, 3, 50).rank_paths
  worst = max(np.prod(np.array(p) + 2) for p in paths)
  every = [(a,) for a in range(50)]
  every += [(a, b) for a in range(50) for b in range(50)]
  every += [(a, b, c) for a, b in every[50:] for c in range(50)]
  better = [p for p in every if np.prod(np.array(p) + 2) < worst]
  assert set(better) <= set(paths)


def test_cost_trees_are_those_that_heads_and_vocabulary_allow():
  assert [t.size for t in cost_trees(MODEL, (1, 4, 16))] == [1, 4, 16]
  assert max(t.max_depth for t in cost_trees(MODEL, (1, 4, 16))) == 2
  no_heads = multi_token_model(heads_config=Heads(offsets=(1,), matched=False))
  assert cost_trees(no_heads) == [Tree.root()]
  assert measure_draft_secs(no_heads, None, [Request((1,), 2)]) == 0


@pytest.fixture(scope="module")
def params():
  import jax

  return decode_params(MODEL, MODEL.init(jax.random.key(0)))


def test_no_text_ends_while_passes_are_timed(params, monkeypatch):
  seen = []
  run = Trial.run

  def spy(self, state, passes):
    secs, state = run(self, state, passes)
    traces = [t.result() for t in _traces(state)]
    seen.append((self.spec.tree.size, passes, state.tokens_BS.shape, traces))
    return secs, state

  monkeypatch.setattr(Trial, "run", spy)
  requests = [
    Request((1, 2, 3), 1, temperature=2.0, index=0, stop_sequences=((4,),)),
    Request((7,), 5, temperature=2.0, index=1, min_new_tokens=3),
  ]
  trees = [Tree.root(), Tree.chain(2)]
  costs = measure_pass_costs(MODEL, params, requests, trees, repeats=2)
  assert [nodes for nodes, _ in costs] == [1, 3]
  assert all(secs > 0 for _, secs in costs)
  # Trees take turns, a round more than asked for, which compiles.
  assert [size for size, *_ in seen] == [1, 3] * 3
  assert len({shape for _, _, shape, _ in seen}) == 1
  for _, passes, _, results in seen:
    for result in results:
      assert result.finish_reason == "running"
      assert result.passes == 1 + passes  # every row ran in every pass


def _traces(state):
  from mtpjax.decode.batch import read_traces

  return read_traces(state)


def test_drafting_takes_time(params):
  requests = [
    Request((1, 2, 3), 9, temperature=2.0),
    Request((7,), 9, temperature=2.0),
  ]
  assert measure_draft_secs(MODEL, params, requests, 1) > 0
