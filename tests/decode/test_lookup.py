"""Drafts from the text itself, against a search in plain Python."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decoding import (
  CHAIN,
  ROOT,
  V,
  counter_params,
  multi_token_model,
  random_params,
  random_requests,
  run,
  to_decode,
)

from mtpjax import config as config_lib
from mtpjax import decode
from mtpjax.decode import verifiers
from mtpjax.decode.drafters import lookup

MODEL = multi_token_model()
find = functools.partial(jax.jit, static_argnames=("longest", "n"))(lookup.find)


def by_hand(text, longest, n, shortest=1):
  """The tokens behind the last occurrence of the longest n-gram, or None."""
  for size in range(min(longest, len(text) - 1), shortest - 1, -1):
    ngram = text[-size:]
    for end in range(len(text) - 1, size - 1, -1):
      if text[end - size : end] == ngram:
        # What is proposed is text too, for the proposals behind it.
        grown = list(text)
        for i in range(n):
          grown.append(grown[end + i])
        return grown[len(text) :]
  return None


@pytest.mark.parametrize("longest, n", [(1, 3), (3, 4), (4, 9)])
def test_find_is_a_search_in_plain_python(longest, n):
  rng = np.random.default_rng(longest)
  found = missed = 0
  for letters in (2, 3, 5, 40):
    lengths = rng.integers(1, 31, 64)
    lengths[:4] = 1, 2, 3, 30  # alone, and up to the last place there is
    tokens_BS = rng.integers(0, letters, (64, 30))
    got_BN, n_matched_B = find(
      jnp.asarray(tokens_BS), jnp.asarray(lengths - 1), longest, n
    )
    for b, length in enumerate(lengths):
      want = by_hand(tokens_BS[b, :length].tolist(), longest, n)
      size = next(
        (
          n
          for n in range(min(longest, length - 1), 0, -1)
          if by_hand(tokens_BS[b, :length].tolist(), n, 1, n) is not None
        ),
        0,
      )
      assert n_matched_B[b] == size
      assert (size > 0) == (want is not None)
      if want is not None:
        assert got_BN[b].tolist() == want
      found, missed = found + (want is not None), missed + (want is None)
  assert found > 50 and missed > 50


@pytest.mark.parametrize("text, longest, want", [
  ([1, 2, 3, 1, 2], 3, [3, 1, 2, 3, 1, 2, 3]),  # a period of three
  ([4, 4], 3, [4] * 7),  # of one
  ([0, 0, 0, 0], 2, [0] * 7),  # token 0 is a token
  ([5, 1, 2, 6, 1, 2, 7, 2], 3, [7, 2, 7, 2, 7, 2, 7]),  # the latest
  ([5, 1, 2, 6, 9, 2, 7, 1, 2], 3, [6, 9, 2, 7, 1, 2, 6]),  # the longest
  ([5, 1, 2, 6, 9, 2, 7, 1, 2], 1, [7, 1, 2, 7, 1, 2, 7]),
])  # fmt: skip
def test_the_longest_match_counts_then_the_latest_and_it_goes_on(
  text, longest, want
):
  assert by_hand(text, longest, 7) == want
  # Behind the text, what would be a better match.
  tokens_BS = jnp.array([text + text + [8] * (20 - 2 * len(text))])
  got_BN, n_matched_B = find(tokens_BS, jnp.array([len(text) - 1]), longest, 7)
  assert n_matched_B[0] > 0 and got_BN[0].tolist() == want


def lookup_run(model, params, asked, **kwargs):
  # Always four requests, so that programs are compiled once.
  padded = asked + asked[-1:] * (4 - len(asked))
  results = run(model, params, CHAIN, padded, drafter=lookup.Lookup(), **kwargs)
  return results[: len(asked)]


def test_without_a_match_there_is_no_draft():
  # Up to token V - 1 no token comes twice; 0 is what empty drafts look like.
  asked = [decode.Request((b,), V - 1 - b) for b in range(4)]
  for request, result in zip(
    asked, lookup_run(MODEL, counter_params(), asked), strict=True
  ):
    assert result.ids == tuple(range(request.ids[0] + 1, V))
    assert result.passes == len(result.ids)
    assert (result.proposed, result.accepted) == (0, 0)


def test_invalid_drafts_are_not_accepted_even_where_they_are_right():
  # The text is 5 0 0 0 ...: 0 is also what an empty buffer proposes.
  params = counter_params(constant=0)
  [result] = lookup_run(MODEL, params, [decode.Request((5,), 10)])
  # 5 -> 0 by the prompt, 0 by a pass without a match, then four a pass.
  assert result.ids == (0,) * 10
  assert result.origins == (0, 0, 1, 2, 3, 0, 1, 2, 3, 0)
  assert (result.passes, result.proposed, result.accepted) == (4, 6, 6)


def test_a_counter_is_foretold_as_soon_as_it_comes_round():
  # Behind V tokens each is known from the round before: four a pass.
  asked = [
    decode.Request(tuple(range(3)), 30),
    decode.Request((*range(V), *range(3)), 30),
  ]
  first, second = lookup_run(MODEL, counter_params(), asked)
  for result in (first, second):
    assert result.ids == tuple((3 + i) % V for i in range(30))
  # 8 tokens, up to the last of the alphabet, and the first that recurs.
  assert first.origins[:9] == (0,) * 9
  assert first.origins[9:] == ((1, 2, 3, 0) * 6)[:21]
  assert first.passes == 9 + -(-21 // 4)
  assert second.passes == 1 + -(-29 // 4)
  assert second.origins == (0, *((1, 2, 3, 0) * 8)[:29])


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_lookup_says_what_plain_decoding_does(temperature):
  accepted = 0
  for seed in range(12):
    params = to_decode(MODEL, random_params(MODEL, seed))
    asked = random_requests(seed, temperature)
    plain = run(MODEL, params, ROOT, asked, (3,))
    drafted = lookup_run(MODEL, params, asked, eos_ids=(3,))
    for one, two in zip(plain, drafted, strict=True):
      assert (one.ids, one.finish_reason) == (two.ids, two.finish_reason)
      np.testing.assert_allclose(one.logprobs, two.logprobs, rtol=0, atol=1e-4)
      # Every pass adds a token of its own, but for a last one that was cut.
      assert two.passes == two.origins.count(0) + (two.origins[-1] > 0)
      accepted += two.accepted
  assert accepted > 30


def test_right_drafts_stand_when_rejection_verifies_them():
  # At a low temperature the counter is sure of itself, and lookup was too.
  asked = [decode.Request((*range(V), *range(3)), 21, temperature=1e-3, index=b)
           for b in range(4)]  # fmt: skip
  for result in lookup_run(
    MODEL, counter_params(), asked, verifier=verifiers.Rejection()
  ):
    assert result.ids == tuple((3 + i) % V for i in range(21))
    assert result.passes == 6


def test_no_head_is_needed():
  alone = multi_token_model(config_lib.Heads(offsets=(1,), matched=False))
  stacked = random_params(MODEL, 7)
  params = decode.decode_params(alone, {"lm": stacked["lm"]})
  asked = random_requests(7, 0.0)
  want = run(MODEL, to_decode(MODEL, stacked), CHAIN, asked)
  got = lookup_run(alone, params, asked)
  assert [r.ids for r in got] == [r.ids for r in want]
  assert sum(r.accepted for r in got) > 0
