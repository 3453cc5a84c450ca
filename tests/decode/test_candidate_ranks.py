"""Ranks of a finished text tell what decoding it with any tree would do."""

import jax
import numpy as np
import pytest
from decoding import (
  BLOCK,
  CHAIN,
  ROOT,
  WIDE,
  multi_token_model,
  random_params,
  random_requests,
  run,
  to_decode,
)

from mtpjax import config as config_lib
from mtpjax.evals.drafts.candidate_ranks import candidate_ranks

MODELS = {
  "block": BLOCK,
  "medusa": config_lib.Heads(kind="medusa", matched=False),
  "linear-last": config_lib.Heads(kind="linear", tap="last", matched=False),
}


def walk(tree, ranks_NM):
  """Passes behind the prompt's own, and the node of each draft accepted."""
  at, passes, nodes = 0, 0, []
  while at < len(ranks_NM) - 1:
    node = depth = 0
    while depth < tree.max_depth:
      rank = ranks_NM[at, depth]
      children = [
        n for n in range(1, tree.size)
        if tree.parents[n] == node and tree.ranks[n] == rank
      ]  # fmt: skip
      if not children:
        break
      [node], depth = children, depth + 1
      nodes.append(node)
    at, passes = at + depth + 1, passes + 1
  return passes, nodes


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("name", MODELS)
def test_a_walk_over_the_ranks_is_what_decoding_does(name, temperature):
  model = multi_token_model(MODELS[name])
  accepted = 0
  for seed in (1, 2):
    stacked = random_params(model, seed)
    params = to_decode(model, stacked)
    requests = random_requests(seed, temperature)
    plain = run(model, params, ROOT, requests)
    with jax.default_matmul_precision("highest"):
      ranks = candidate_ranks(model, stacked, requests, plain, 3)
    for tree in (CHAIN, WIDE):
      results = run(model, params, tree, requests)
      for ranks_NM, result, one in zip(ranks, results, plain, strict=True):
        assert result.ids == one.ids
        passes, nodes = walk(tree, ranks_NM)
        assert result.passes == 1 + passes
        assert [o for o in result.origins if o] == nodes
        accepted += len(nodes)
  assert accepted > 5


def test_a_rank_is_negative_where_the_text_ends_before():
  model = multi_token_model()
  stacked = random_params(model, 3)
  requests = random_requests(3, 0.0)
  plain = run(model, to_decode(model, stacked), ROOT, requests)
  ranks = candidate_ranks(model, stacked, requests, plain, 3)
  for result, ranks_NM in zip(plain, ranks, strict=True):
    n = len(result.ids)
    assert ranks_NM.shape == (n, 3)
    is_known_NM = np.arange(n)[:, None] + np.arange(1, 4) < n
    np.testing.assert_array_equal(ranks_NM >= 0, is_known_NM)
