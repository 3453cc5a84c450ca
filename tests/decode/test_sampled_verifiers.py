"""Verifiers that sample, through the real loop: what comes is what should.

A vocabulary of 5 has few texts, so that those of 5,000 requests can be held
against their exact probabilities. Statistics are by position, never by pass:
what a pass accepts says something about its tokens.
"""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import slow_pipeline as slow
from decoding import Plan, forward_logits, random_params, to_decode
from jax.extend import random as extended_random
from scipy import stats

from mtpjax import config as config_lib
from mtpjax import decode, heads, parallel
from mtpjax.decode import drafters, noise, verifiers

V, BATCH, ROUNDS = 5, 32, 5_000
PROMPT = (3, 1, 4, 1)
N_TOKENS = 4
ALPHA = 1e-9
TREE = decode.Tree.from_rank_paths([(0,), (1,), (0, 0), (1, 0), (0, 0, 0)])
CHAIN = decode.Tree.chain(3)
NAMES = ("plain", "rejection", "block", "typical", "lookup")
LOSSLESS = ("rejection", "block", "lookup")


@functools.cache
def model():
  config = config_lib.Model(
    vocab_size=V, d_model=8, n_layers=1, n_attention_heads=2, n_kv_heads=1,
    d_head=4, d_ff=16, dtype="float32",
  )  # fmt: skip
  return heads.MultiTokenModel(
    config,
    config_lib.Heads(kind="medusa", tap="last", matched=False),
    parallel.single_device_mesh(),
  )


@functools.cache
def params_of(seed):
  params = random_params(model(), seed)
  return params, to_decode(model(), params)


def program(tree, verifier="coupled", drafter=None):
  """A program that can take turns with the others."""
  stages = decode.Stages(is_sampled=True, truncates=True)
  heads = drafters.drafting_heads(model(), 3)
  if isinstance(verifier, str):
    verifier = verifiers.VERIFIERS[verifier]()
  return decode.Spec(
    model(), tree, stages, drafters.Keeping(drafter or heads, (heads,)),
    verifier, room=4,
  )  # fmt: skip


PROGRAMS = {
  "plain": program(decode.Tree.root()),
  "coupled": program(CHAIN),
  "rejection": program(TREE, "rejection"),
  "block": program(CHAIN, "block"),
  "typical": program(CHAIN, "typical"),
  "lookup": program(CHAIN, "rejection", drafters.Lookup()),
}


def ask(name, params, requests, batch=BATCH, chunk_passes=64):
  """Returns the last result of each request; `name` may be a program too.

  Plain decoding is the first of two programs, which share what admits.
  """
  spec = PROGRAMS[name] if isinstance(name, str) else name
  latest = {}
  with jax.default_matmul_precision("highest"):
    for results in decode.generate(
      [PROGRAMS["plain"], spec], params, requests, (), batch, chunk_passes,
      chooser=Plan(1),
    ):  # fmt: skip
      latest |= results
  assert all(r.finish_reason == "length" for r in latest.values())
  return [latest[n] for n in range(len(requests))]


def exact_joint(seed, settings):
  """Probability [V] * 4 of the first four tokens, in float64."""
  texts = list(itertools.product(range(V), repeat=N_TOKENS - 1))
  logits_BTV = forward_logits(
    model(), params_of(seed)[0], [PROMPT + text for text in texts]
  )
  joint = np.zeros((V,) * N_TOKENS)
  for text, logits_TV in zip(texts, logits_BTV, strict=True):
    laws = [
      slow.softmax(
        slow.final_logits(
          settings, (), logits_TV[len(PROMPT) - 1 + n], text[:n]
        )
      )
      for n in range(N_TOKENS)
    ]
    above = np.prod([laws[n][token] for n, token in enumerate(text)])
    joint[text] = above * laws[-1]
  np.testing.assert_allclose(joint.sum(), 1)
  return joint


def chi_square(counts, probs):
  """Returns the statistic and its limit; rare cells are taken together."""
  counts, probs = counts.ravel(), probs.ravel()
  if counts[probs == 0].any():
    return np.inf, 0.0
  order = np.argsort(-probs)
  expected = probs[order] * counts.sum()
  # As many cells as expect 10 or more; the rest is one, if it does.
  n = max(1, int(np.sum(expected >= 10)))
  if expected[n:].sum() < 10:
    n -= 1
  expected = np.append(expected[:n], expected[n:].sum())
  seen = np.append(counts[order][:n], counts[order][n:].sum())
  statistic = np.sum((seen - expected) ** 2 / expected)
  return statistic, stats.chi2.isf(ALPHA, n)


def measure(name, seed, **settings):
  """Runs 5,000 requests; returns {tokens: (statistic, limit)} and accepted."""
  request = decode.Request(PROMPT, N_TOKENS, temperature=0.8, seed=seed)
  request = dataclasses.replace(request, **settings)
  requests = [dataclasses.replace(request, index=i) for i in range(ROUNDS)]
  results = ask(name, params_of(seed)[1], requests)
  counts = np.zeros((V,) * N_TOKENS)
  for result in results:
    counts[result.ids] += 1
  joint = exact_joint(seed, request)
  found = {
    "1-3": chi_square(counts.sum(axis=3), joint.sum(axis=3)),
    "2-4": chi_square(counts.sum(axis=0), joint.sum(axis=0)),
  }
  per_pass = ROUNDS * N_TOKENS / sum(r.passes for r in results)
  print(
    "; ".join(
      f"tokens {at}: {value:.1f} of {limit:.1f}"
      for at, (value, limit) in found.items()
    ),
    f"; {per_pass:.2f} tokens per pass",
  )
  return found, per_pass


@pytest.mark.parametrize(
  "name,seed,settings",
  [
    ("rejection", 1, {}),
    ("rejection", 16, {"top_p": 0.9}),
    ("block", 8, {"top_k": 3}),
    ("block", 4, {}),
    ("lookup", 15, {"top_p": 0.95, "top_k": 4}),
  ],
)
def test_5000_texts_follow_the_model(name, seed, settings):
  found, per_pass = measure(name, seed, **settings)
  for value, limit in found.values():
    assert value < limit
  assert per_pass > 1.04  # drafts were accepted, and rejected
  assert per_pass < 3


def softmax_of_residual(tree, tokens_BQ, valid_BQ, target_BQV, draft_BMV):
  """Slip: what is left is made a distribution by a softmax."""
  right = RIGHT(tree, tokens_BQ, valid_BQ, target_BQV, draft_BMV)
  excess_BMV = jnp.maximum(target_BQV[:, :-1] - draft_BMV, 0)
  return right.replace(
    emit_BQV=target_BQV.at[:, :-1].set(jax.nn.softmax(excess_BMV, axis=-1))
  )


def fresh_draw(tree, tokens_BQ, valid_BQ, target_BQV, draft_BMV):
  """Slip: a rejected draft is followed by a draw from the target itself."""
  right = RIGHT(tree, tokens_BQ, valid_BQ, target_BQV, draft_BMV)
  return right.replace(emit_BQV=target_BQV)


RIGHT = verifiers.Rejection().judge
SLIPS = {
  "softmax": softmax_of_residual,
  "fresh": fresh_draw,
}


@dataclasses.dataclass(frozen=True)
class Slip(verifiers.Rejection):
  """Rejection, one line of it wrong."""

  name: str = ""

  def judge(self, *args):
    return SLIPS[self.name](*args[:5])  # drafts come one after the other


@pytest.mark.parametrize("slip", SLIPS)
def test_the_statistics_see_a_slip(slip):
  found, _ = measure(program(CHAIN, Slip(slip)), 1)
  value, limit = found["2-4"]
  assert value > 2 * limit


def test_the_statistics_see_that_typical_acceptance_is_lossy():
  found, _ = measure("typical", 1)
  value, limit = found["2-4"]
  assert value > 2 * limit


def mixed(seed, temperature, n=BATCH):
  """Requests of which every other one is greedy."""
  rng = np.random.default_rng(seed)
  return [
    decode.Request(
      tuple(rng.integers(0, V, rng.integers(1, 21)).tolist()),
      int(rng.integers(8, 25)), temperature=(0.0, temperature)[i % 2],
      seed=seed, index=i, top_k=(0, 0, 3)[i % 3], top_p=(1, 0.9)[i % 4 // 2],
    )
    for i in range(n)
  ]  # fmt: skip


def greedy(requests):
  return [dataclasses.replace(r, temperature=0) for r in requests]


def least_margin(seed, request, ids):
  """Smallest difference of two best logits up to where texts part."""
  logits_1TV = forward_logits(
    model(), params_of(seed)[0], [(*request.ids, *ids)]
  )
  at = len(request.ids) - 1 + len(ids)
  runner_up, best = np.sort(logits_1TV[0, at])[-2:]
  return best - runner_up


def first_difference(one, two):
  return next(
    n for n, (a, b) in enumerate(zip(one.ids, two.ids, strict=True)) if a != b
  )


@pytest.mark.parametrize("name", NAMES)
def test_greedy_rows_among_sampled_ones_are_plain_greedy_decoding(name):
  params = params_of(5)[1]
  requests = mixed(5, 1.0)
  expected = ask("plain", params, greedy(requests))
  results = ask(name, params, requests)
  for one, two in list(zip(expected, results, strict=True))[::2]:
    assert one.ids == two.ids
    np.testing.assert_allclose(one.logprobs, two.logprobs, rtol=0, atol=1e-4)
  sampled = list(zip(expected, results, strict=True))[1::2]
  assert sum(one.ids != two.ids for one, two in sampled) > 8


@pytest.mark.parametrize("name", ["coupled", *LOSSLESS])
def test_at_a_temperature_near_zero_all_say_what_greedy_decoding_says(name):
  temperature, differ = 1e-4, 0
  for seed in range(6, 10):
    params = params_of(seed)[1]
    requests = [
      dataclasses.replace(r, temperature=temperature) for r in mixed(seed, 1.0)
    ]
    expected = ask("plain", params, greedy(requests))
    results = ask(name, params, requests)
    for request, one, two in zip(requests, expected, results, strict=True):
      if one.ids != two.ids:
        n = first_difference(one, two)
        margin = least_margin(seed, request, one.ids[:n])
        print(f"differs at token {n} by a margin of {margin:.1e}")
        # Noise of more than 30 is beyond what 32 bits can give.
        assert margin < 30 * temperature
        differ += 1
  assert differ <= 4


@pytest.mark.parametrize("name", NAMES[1:])
def test_neither_neighbours_nor_order_change_what_a_verifier_draws(name):
  params = params_of(11)[1]
  requests, others = mixed(11, 1.3), mixed(12, 0.7)
  expected = ask(name, params, requests)
  order = np.random.default_rng(0).permutation(BATCH).tolist()
  again = ask(name, params, [requests[i] for i in order])
  assert [r.ids for r in again] == [expected[i].ids for i in order]
  company = [*others[:20], *requests[:12]]
  assert ask(name, params, company)[20:] == expected[:12]
  chunks = ask(name, params, [*requests[4:], *others[:4]], chunk_passes=24)
  assert chunks[:28] == expected[4:]


@pytest.mark.parametrize("name", ["rejection", "block"])
def test_a_batch_of_four_that_is_refilled_draws_the_same(name):
  params = params_of(13)[1]
  requests = mixed(13, 1.0)
  expected = ask(name, params, requests)
  results = ask(name, params, requests, batch=4, chunk_passes=5)
  assert [r.ids for r in results] == [r.ids for r in expected]


def test_one_draft_is_the_same_for_rejection_block_and_a_tree_of_one_path():
  assert decode.Tree.from_rank_paths([(0,)]) == decode.Tree.chain(1)
  params, requests = params_of(14)[1], mixed(14, 1.0)
  one = decode.Tree.chain(1)
  rejected = ask(program(one, "rejection"), params, requests, batch=4)
  assert ask(program(one, "block"), params, requests, batch=4) == rejected
  accepted = sum(r.accepted for r in rejected)
  assert 0 < accepted < sum(r.proposed for r in rejected)


@pytest.mark.parametrize("verifier", ["rejection", "block"])
def test_a_tree_of_one_node_is_plain_decoding(verifier):
  params, requests = params_of(15)[1], mixed(15, 1.0)
  root = decode.Tree((0,), (0,))
  results = ask(program(root, verifier), params, requests)
  assert results == ask("plain", params, requests)


def constant_bits():
  """A generator of the same bits always: seed 0 gives 0, seed 1 all ones.

  Its uniforms are exactly 0, or as close to 1 as they come.
  """
  return extended_random.define_prng_impl(
    key_shape=(1,),
    seed=lambda seed: (
      (-jnp.asarray(seed).astype(jnp.int32)).astype(jnp.uint32).reshape(1)
    ),
    split=lambda key, shape: jnp.broadcast_to(key, (*shape, 1)),
    random_bits=lambda key, width, shape: jnp.broadcast_to(
      key[0].astype(f"uint{width}"), shape
    ),
    fold_in=lambda key, _: key,
    name="constant_bits",
  )


def test_uniforms_of_zero_or_nearly_one_give_no_token_without_mass(
  monkeypatch,
):
  impl = constant_bits()
  monkeypatch.setattr(
    noise, "request_key",
    lambda seed, index: jax.random.fold_in(
      jax.random.key(seed, impl=impl), index
    ),
  )  # fmt: skip
  keys_B = jnp.stack([noise.request_key(seed, 0) for seed in (0, 1)])
  accept_BQ, emit_B = noise.coins(keys_B, jnp.zeros(2, jnp.int32), 3)
  assert not accept_BQ[0].any() and not emit_B[0]
  assert 1 - 1e-6 < accept_BQ[1].min() and emit_B[1] < 1
  gumbel = noise.position_noise(keys_B, jnp.zeros((2, 1), jnp.int32), V)
  assert np.isfinite(gumbel).all()
  assert gumbel[0].max() < -4 and gumbel[1].min() > 15

  seed = 16
  stacked, params = params_of(seed)
  for name in ("coupled", "rejection", "block"):
    requests = [
      dataclasses.replace(r, seed=bits, temperature=1.0, top_k=2)
      for r in mixed(seed, 1.0, 2)
      for bits in (0, 1)
    ]
    results = ask(name, params, requests, batch=4)
    logits_BTV = forward_logits(
      model(), stacked,
      [r.ids + x.ids for r, x in zip(requests, results, strict=True)],
    )  # fmt: skip
    for b, (request, result) in enumerate(zip(requests, results, strict=True)):
      for n, token in enumerate(result.ids):
        logits_V = logits_BTV[b, len(request.ids) - 1 + n]
        final_V = slow.final_logits(request, (), logits_V, result.ids[:n])
        assert np.sum(final_V > -np.inf) == 2
        assert final_V[token] > -np.inf, (name, request.seed, n)
