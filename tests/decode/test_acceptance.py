"""Drafts that are always right, always wrong, or right at one known node."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decoding import (
  CHAIN,
  ROOT,
  WIDE,
  V,
  advance,
  counter_params,
  multi_token_model,
  random_params,
  read,
  run,
  start,
  to_decode,
)

from mtpjax import decode
from mtpjax.decode import step as steps
from mtpjax.decode.drafters import Candidates

MODEL = multi_token_model()
LENGTHS = (1, 3, 20, 32)  # 32 fills its bucket


def requests(budget, temperature=0.0):
  rng = np.random.default_rng(0)
  return [
    decode.Request(
      tuple(rng.integers(0, V, n).tolist()),
      budget,
      temperature=temperature,
      index=i,
    )
    for i, n in enumerate(LENGTHS)
  ]


def counted(request, step=1):
  return tuple(
    (request.ids[-1] + step * n) % V
    for n in range(1, request.max_new_tokens + 1)
  )


@pytest.mark.parametrize("tree", [CHAIN, WIDE], ids=["chain", "wide"])
@pytest.mark.parametrize("step", [1, 4])
def test_drafts_that_are_always_right_fill_every_block(tree, step):
  params = counter_params(step=step)
  # The prompt's own pass brings one token, every other one brings four.
  for budget, passes in [(1, 1), (2, 2), (5, 2), (9, 3), (21, 6), (22, 7)]:
    asked = requests(budget)
    for request, result in zip(
      asked, run(MODEL, params, tree, asked), strict=True
    ):
      assert result.ids == counted(request, step)
      assert (result.passes, result.finish_reason) == (passes, "length")


@pytest.mark.parametrize("shifts, per_pass", [((1, 0, 0), 1), ((0, 3, 0), 2),
                                              ((0, 0, 5), 3)])  # fmt: skip
def test_a_chain_ends_at_its_first_wrong_draft(shifts, per_pass):
  # What is right behind a wrong draft does not count.
  asked = requests(1 + 6 * per_pass)
  results = run(MODEL, counter_params(shifts), CHAIN, asked)
  for request, result in zip(asked, results, strict=True):
    assert result.ids == counted(request)
    assert result.passes == 7


@pytest.mark.parametrize("tree", [CHAIN, WIDE], ids=["chain", "wide"])
def test_drafts_see_the_noise_of_the_position_they_are_for(tree):
  # Where all logits are equal the noise alone decides, so every draft is right.
  params = counter_params(is_flat=True)
  results = run(MODEL, params, tree, requests(13, temperature=1.0))
  assert len({r.ids for r in results}) == 4
  assert {r.passes for r in results} == {4}


@pytest.mark.parametrize("tree", [CHAIN, WIDE], ids=["chain", "wide"])
def test_token_0_everywhere(tree):
  # Buffers begin as zeros: neither they nor the padding may count as drafts.
  asked = requests(13)
  right = run(MODEL, counter_params(constant=0), tree, asked)
  assert {r.ids for r in right} == {(0,) * 13}
  assert {r.passes for r in right} == {4}
  # Candidates of rank 1 have another token than 0 too: V - 1 others tie.
  wrong = counter_params((1, 1, 1), constant=0)
  chain = run(MODEL, wrong, CHAIN, asked)
  assert {(r.ids, r.passes) for r in chain} == {((0,) * 13, 13)}


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("first", [0, 4])
def test_the_right_path_is_taken_wherever_it_is_in_the_tree(
  first, temperature, monkeypatch
):
  """Puts the true tokens at one node's ranks, and wrong ones at all others."""
  params = to_decode(MODEL, random_params(MODEL, 11))
  asked = [
    decode.Request(ids, 16, temperature=temperature, index=i)
    for i, ids in enumerate([(5,), (1, 2, 3), (4,) * 9, (0, 6)])
  ]
  plain = run(MODEL, params, ROOT, asked)
  spec, tables, state = start(MODEL, params, WIDE, asked)
  nodes = range(first, first + 4)
  candidates_BMC = np.zeros((4, WIDE.max_depth, WIDE.width), np.int32)
  for b, node in enumerate(nodes):
    for d in range(WIDE.max_depth):
      true = plain[b].ids[1 + d]
      wrong = [t for t in range(V) if t != true]
      candidates_BMC[b, d] = wrong[: WIDE.width]
    while node:
      d = WIDE.depth_Q[node] - 1
      candidates_BMC[b, d, WIDE.ranks[node]] = plain[b].ids[1 + d]
      node = WIDE.parents[node]
  # One true token on two ranks would make two siblings equal.
  assert all(
    len(set(row)) == WIDE.width for row in candidates_BMC.reshape(-1, 3)
  )
  drafts = Candidates(
    jnp.asarray(candidates_BMC), jnp.ones(candidates_BMC.shape, bool), None
  ).at_nodes(WIDE, state.root_B)
  with monkeypatch.context() as patch, jax.default_matmul_precision("highest"):
    patch.setattr(steps, "draft", lambda *_: drafts)
    state = steps.step(spec, params, tables, state)
  for b, result in enumerate(read(state)):
    assert len(result.ids) == 2 + WIDE.depth_Q[nodes[b]]
    assert result.ids == plain[b].ids[: len(result.ids)]
  # What the pass left in the caches is right as well.
  state = advance(spec, params, tables, state, 64)
  for one, two in zip(plain, read(state), strict=True):
    assert (one.ids, one.finish_reason) == (two.ids, two.finish_reason)
    np.testing.assert_allclose(one.logprobs, two.logprobs, rtol=0, atol=1e-4)
