"""Whatever drafts, the output is that of plain decoding, token for token."""

import numpy as np
import pytest
from decoding import (
  BLOCK,
  CHAIN,
  ROOT,
  WIDE,
  committed_per_pass,
  expected_ending,
  margins,
  multi_token_model,
  random_params,
  random_requests,
  regenerate,
  reports,
  run,
  to_decode,
)

from mtpjax import config as config_lib
from mtpjax import decode

TIE = 1e-5  # two scores so close are a matter of rounding


def check(model, params, requests, results, eos_ids):
  """Compares with a pass that has no cache; returns what differs."""
  found = []
  for b, n, margin, is_best, logprob in margins(
    model, params, requests, results
  ):
    assert abs(results[b].logprobs[n] - logprob) < 1e-4
    if not is_best:
      found.append((requests[b], n, margin))
  for request, result in zip(requests, results, strict=True):
    assert result.finish_reason == expected_ending(request, result, eos_ids)
    assert len(result.logprobs) == len(result.ids)
  return found


def differences(model, params, requests, plain, other):
  """Returns (request, position, margin) of the first difference per row."""
  found = []
  for b, (one, two) in enumerate(zip(plain, other, strict=True)):
    if one.ids != two.ids:
      n = int(np.argmin([x == y for x, y in zip(one.ids, two.ids)]))  # noqa: B905
      by_place = {
        (row, at): margin
        for row, at, margin, _, _ in margins(model, params, requests, plain)
      }
      found.append((requests[b], n, by_place[b, n]))
      continue
    assert one.finish_reason == two.finish_reason
    assert two.passes <= one.passes == len(one.ids)
    np.testing.assert_allclose(one.logprobs, two.logprobs, rtol=0, atol=1e-4)
  return found


def accept_only_ties(found):
  for request, n, margin in found:
    print(f"differs at token {n} by a margin of {margin:.2e}: {request}")
  assert all(margin < TIE for _, _, margin in found)
  assert len(found) <= 2


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_200_random_models_say_with_drafts_what_they_say_without(temperature):
  model = multi_token_model()
  found, committed, passes, tokens = [], [], 0, 0
  for seed in range(200):
    params = random_params(model, seed)
    decoded = to_decode(model, params)
    requests = random_requests(seed, temperature)
    eos_ids = [(), (3,), (5, 0)][seed % 3]
    args = dict(eos_ids=eos_ids, is_sampled=temperature > 0)
    plain = run(model, decoded, ROOT, requests, **args)
    # Reports after single passes show how far each row went in each.
    every = list(
      reports(model, decoded, CHAIN, requests, **args,
              chunk_passes=64 if seed % 10 else 1)
    )  # fmt: skip
    found += check(model, params, requests, plain, eos_ids)
    found += differences(model, params, requests, plain, every[-1])
    if seed % 10 == 0:
      committed += committed_per_pass(every)
    passes += sum(result.passes for result in every[-1])
    tokens += sum(len(result.ids) for result in every[-1])
  accept_only_ties(found)
  print(f"{len(found)} excused; {tokens / passes:.3f} tokens per pass")
  # Rows that go on did so by different numbers, up to the whole block.
  steps = [set(row) - {0} for row in committed]
  assert sum(len(numbers) > 1 for numbers in steps) >= 5
  assert set.union(*steps) >= {1, 2, 3}
  assert tokens > 1.1 * passes


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_plain_decoding_is_running_the_whole_text_for_each_token(
  seed, temperature
):
  model = multi_token_model()
  params = random_params(model, seed)
  requests = random_requests(seed, temperature)
  results = run(
    model, to_decode(model, params), ROOT, requests, (3,), temperature > 0
  )
  assert [(r.ids, r.finish_reason) for r in results] == regenerate(
    model, params, requests, (3,)
  )


def test_wide_trees_say_what_plain_decoding_does():
  model = multi_token_model()
  found, gained = [], 0
  for seed in range(40):
    params = random_params(model, 1000 + seed)
    decoded = to_decode(model, params)
    # Greedy and sampled rows in one batch.
    requests = random_requests(seed, 0.8)[:2] + random_requests(seed, 0.0)[2:]
    plain, chain, wide = (
      run(model, decoded, tree, requests, (3,)) for tree in (ROOT, CHAIN, WIDE)
    )
    found += differences(model, params, requests, plain, chain)
    found += differences(model, params, requests, plain, wide)
    gained += sum(c.passes - w.passes for c, w in zip(chain, wide, strict=True))
  accept_only_ties(found)
  assert gained > 40  # the branches beside the chain count for something


HEADS = {
  "linear": config_lib.Heads(kind="linear", tap="last", matched=False),
  "medusa": config_lib.Heads(kind="medusa", matched=False),
  "block-last": config_lib.Heads(kind="block", tap="last", matched=False),
}


@pytest.mark.parametrize("name", HEADS)
def test_heads_of_every_kind_and_at_either_tap(name):
  model = multi_token_model(HEADS[name])
  tokens = passes = 0
  for seed in range(10):
    params = random_params(model, seed)
    requests = random_requests(seed, 0.0)
    results = run(
      model, to_decode(model, params), WIDE, requests, (3,), is_sampled=False
    )
    accept_only_ties(check(model, params, requests, results, (3,)))
    tokens += sum(len(result.ids) for result in results)
    passes += sum(result.passes for result in results)
  assert tokens > 1.05 * passes, tokens / passes


def test_a_tree_that_is_built_as_one_node_is_plain_decoding():
  model = multi_token_model(BLOCK)
  decoded = to_decode(model, random_params(model, 9))
  requests = random_requests(9, 0.8)
  results = run(model, decoded, decode.Tree((0,), (0,)), requests)
  assert results == run(model, decoded, ROOT, requests)
  for result in results:
    assert result.passes == len(result.ids)
