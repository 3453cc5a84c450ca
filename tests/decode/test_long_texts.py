"""Prompts in chunks and caches in blocks: the same text as in one piece."""

import jax
import numpy as np
import pytest
from decoding import (
  CHAIN,
  ROOT,
  multi_token_model,
  random_params,
  run,
  to_decode,
)

from mtpjax import decode
from mtpjax.config import Heads
from mtpjax.decode import prefill
from mtpjax.decode.drafters import Lookup
from mtpjax.model.attention import choose

V = 11
MODELS = {
  "block": multi_token_model(),
  "sequential": multi_token_model(
    heads_config=Heads(
      kind="sequential", offsets=(1, 2, 3, 4), tap="last", matched=False
    )
  ),
}
LENGTHS = (1, 8, 9, 23, 31, 40)


def asked():
  rng = np.random.default_rng(0)
  return [
    decode.Request(
      tuple(rng.integers(0, V, n).tolist()), 20, temperature=0.7 * (n % 2),
      index=n,
    )
    for n in LENGTHS
  ]  # fmt: skip


def same(one, two):
  for a, b in zip(one, two, strict=True):
    assert a.ids == b.ids and a.passes == b.passes
    np.testing.assert_allclose(a.logprobs, b.logprobs, rtol=0, atol=1e-4)


@pytest.fixture
def in_pieces(monkeypatch):
  """Chunks of 8 rows, and blocks of 8 rows of any cache."""
  monkeypatch.setattr(prefill, "CHUNK", 8)
  monkeypatch.setattr(choose, "_FEW_CACHED", 8)
  monkeypatch.setattr(choose, "_CACHED_BLOCK", 8)
  yield
  jax.clear_caches()  # programs made of pieces are no one else's


@pytest.mark.parametrize(
  "kind, tree, changes",
  [
    ("block", ROOT, {}),
    ("block", CHAIN, {}),
    ("block", decode.Tree.from_branching((3, 2)), {}),
    ("block", decode.Tree.chain(4), {"drafter": Lookup()}),
    ("sequential", CHAIN, {}),
  ],
)
def test_pieces_give_the_same_text(kind, tree, changes, in_pieces, monkeypatch):
  model = MODELS[kind]
  params = to_decode(model, random_params(model, 2))
  pieces = run(model, params, tree, asked(), (3,), batch=3, room=9, **changes)
  monkeypatch.undo()
  whole = run(model, params, tree, asked(), (3,), batch=3, room=8, **changes)
  same(pieces, whole)


def test_a_prompt_costs_the_chunks_it_has(in_pieces):
  """Of one program for any length: as many chunks run as there are tokens."""
  model = MODELS["block"]
  params = to_decode(model, random_params(model, 2))
  ran = []

  def seen(start):
    ran.append(int(start))

  real = prefill.cache.after_reads

  def watched(start, never):
    jax.debug.callback(seen, start, ordered=True)
    return real(start, never)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(prefill.cache, "after_reads", watched)
    request = decode.Request(tuple(range(10)), 1, capacity=512)
    run(model, params, ROOT, [request], room=11)
    jax.effects_barrier()
  assert ran == [0, 8]
