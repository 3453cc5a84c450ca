"""A row alone decides what it says; programs are compiled once."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
from decoding import (
  CHAIN,
  ROOT,
  V,
  multi_token_model,
  random_params,
  random_requests,
  run,
  to_decode,
)

from mtpjax import decode

MODEL = multi_token_model()


def same(one, two):
  assert (one.ids, one.finish_reason) == (two.ids, two.finish_reason)
  np.testing.assert_allclose(one.logprobs, two.logprobs, rtol=0, atol=1e-4)


def test_neighbours_order_batch_size_and_padding_do_not_matter():
  params = to_decode(MODEL, random_params(MODEL, 21))
  rng = np.random.default_rng(2)
  asked = random_requests(3, 0.8)
  together = run(MODEL, params, CHAIN, asked, (3,))
  assert len({r.ids for r in together}) == 4
  order = [2, 0, 3, 1]
  for b, result in zip(
    order, run(MODEL, params, CHAIN, [asked[b] for b in order], (3,)),
    strict=True,
  ):  # fmt: skip
    same(result, together[b])
  for other_seed in range(5):
    others = random_requests(50 + other_seed, 0.8)
    same(run(MODEL, params, CHAIN, [*others[:3], asked[0]], (3,))[3],
         together[0])  # fmt: skip
  # Alone in a batch of idle rows, and in a batch of one.
  same(run(MODEL, params, CHAIN, asked[1:2], (3,))[0], together[1])
  same(run(MODEL, params, CHAIN, asked[1:2], (3,), batch=1)[0], together[1])
  # A long neighbour: prompts padded to 64, and room for 64 new tokens.
  long = decode.Request(
    tuple(rng.integers(0, V, 40).tolist()), 40, temperature=0.8
  )
  same(run(MODEL, params, CHAIN, [asked[2], long], (3,))[0], together[2])


def test_a_second_call_of_the_same_bucket_compiles_nothing(caplog):
  params = to_decode(MODEL, random_params(MODEL, 22))

  def compiled():
    return [r for r in caplog.records if r.getMessage().startswith("Compiling")]

  run(MODEL, params, CHAIN, random_requests(0, 0.8), (3,))
  with jax.log_compiles(), caplog.at_level(logging.WARNING):
    for seed in range(1, 4):  # other prompts, budgets, temperatures, EOS ids
      run(MODEL, params, CHAIN, random_requests(seed, 0.3 * seed), (seed,))
    assert not compiled(), compiled()
    jax.jit(lambda x: x * 41 + 17)(1.0)  # would it have been seen?
    assert compiled()


def test_plain_decoding_never_looks_at_the_heads():
  stacked = random_params(MODEL, 23)
  params = to_decode(MODEL, stacked)
  asked = random_requests(5, 0.8)
  want = run(MODEL, params, ROOT, asked, (3,))
  poisoned = params | {
    "heads": jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), params["heads"])
  }
  assert run(MODEL, poisoned, ROOT, asked, (3,)) == want
  # Drafting with them does look, and still says the same.
  chain = run(MODEL, poisoned, CHAIN, asked, (3,))
  assert [r.ids for r in chain] == [r.ids for r in want]
  lm_alone = decode.decode_params(MODEL, {"lm": stacked["lm"]})
  assert lm_alone["heads"] == ()
  assert run(MODEL, lm_alone, ROOT, asked, (3,)) == want
