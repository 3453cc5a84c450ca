"""A chunk of passes leaves every cache and every weight where it lies."""

import dataclasses
import math
import re

import jax
import jax.numpy as jnp
import pytest
import tiny
from decoding import (
  CHAIN,
  ROOT,
  WIDE,
  multi_token_model,
  random_params,
  random_requests,
  spec_of,
  start,
  to_decode,
)
from programs import UNRUN, computations

from mtpjax import config as config_lib
from mtpjax.decode import batch, prefill, step
from mtpjax.decode.drafters import drafting_heads

MODEL = multi_token_model()


MADE = re.compile(
  r"= f32\[([\d,]+)\]\S* (copy|concatenate|scatter|transpose)\("
)


def made(lowered):
  """Lists the lines that make an array out of others, by its shape."""
  compiled = lowered.compile(compiler_options=UNRUN)
  return [
    (tuple(map(int, found[1].split(","))), line.strip())
    for lines in computations(compiled.as_text()).values()
    for line in lines
    if (found := MADE.search(line))
  ]


def copies_of_caches(tree, **changes):
  """Lists what the compiled chunk makes of a whole cache, in any loop."""
  params = to_decode(MODEL, random_params(MODEL, 1))
  asked = random_requests(1, 0.8)
  spec, tables, state = start(MODEL, params, tree, asked, (3,), **changes)
  lowered = batch.run_chunk.lower(spec, params, tables, state, jnp.int32(5))
  cache = state.cache[0].keys_BKSH.shape
  return [line for shape, line in made(lowered) if shape == cache]


@pytest.mark.parametrize(
  "tree, changes",
  [
    (ROOT, {}),
    (ROOT, {"drafter": drafting_heads(MODEL, 3)}),
    (CHAIN, {}),
    (WIDE, {}),
  ],
  ids=["plain", "plain-keeping-heads", "chain", "wide"],
)
def test_no_pass_copies_a_cache(tree, changes):
  assert copies_of_caches(tree, **changes) == []


@pytest.mark.parametrize("tree", [ROOT, CHAIN], ids=["plain", "chain"])
def test_a_long_cache_is_read_in_blocks_and_not_copied(tree):
  params = to_decode(MODEL, random_params(MODEL, 1))
  asked = [
    dataclasses.replace(r, capacity=900) for r in random_requests(1, 0.8)
  ]
  spec, tables, state = start(MODEL, params, tree, asked, (3,))
  lowered = batch.run_chunk.lower(spec, params, tables, state, jnp.int32(5))
  cache = state.cache[0].keys_BKSH.shape
  assert cache[2] > 900
  assert [line for shape, line in made(lowered) if shape == cache] == []


def test_prompts_in_chunks_copy_no_cache(monkeypatch):
  monkeypatch.setattr(prefill, "CHUNK", 16)
  params = to_decode(MODEL, random_params(MODEL, 1))
  spec = spec_of(MODEL, ROOT, random_requests(1, 0.8), room=13)
  packer = batch.Packer.of(spec, random_requests(1, 0.8), ())
  packed = packer.pack(random_requests(1, 0.8))
  state = batch.empty_state(spec, packed["controls"], 4, packer.capacity)
  lowered = batch.admit.lower(
    spec, params, packer.tables, state, packed, jnp.arange(4)
  )
  cache = state.cache[0].keys_BKSH.shape
  lines = [line for shape, line in made(lowered) if shape == cache]
  # At the beginning each is filled with zeros; no chunk copies any.
  assert all("broadcast" in line for line in lines)


def test_a_copy_would_be_seen(monkeypatch):
  def committed_early(cache, rows, path_BJ, start_B):
    del start_B  # the place that waits for the reads
    return real(cache, rows, path_BJ, jnp.full(4, 7))

  real = step.cache.commit
  monkeypatch.setattr(step.cache, "commit", committed_early)
  assert copies_of_caches(ROOT, room=2)


def copies_of_weights(model, tree):
  """Lists what a chunk for one request makes that is as large as a weight."""
  params = to_decode(model, random_params(model, 1))
  asked = random_requests(1, 0.8, n=1)
  spec, tables, state = start(model, params, tree, asked)
  lowered = batch.run_chunk.lower(spec, params, tables, state, jnp.int32(5))
  sizes = {leaf.size for leaf in jax.tree.leaves(params) if leaf.ndim > 1}
  return [line for shape, line in made(lowered) if math.prod(shape) in sizes]


SIZES = dict(vocab_size=211, d_model=38, n_attention_heads=6, n_kv_heads=3,
             d_head=22, d_ff=67)  # fmt: skip


@pytest.mark.parametrize("is_tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize(
  "tree, settings",
  [
    (ROOT, {}),
    (CHAIN, dict(kind="block")),
    (CHAIN, dict(kind="medusa", tap="normed", unembedding="copied")),
    (CHAIN, dict(kind="sequential", tap="last")),
  ],
  ids=["plain", "block", "medusa", "sequential"],
)
def test_no_pass_copies_a_weight(tree, settings, is_tied):
  heads = config_lib.Heads(matched=False, **settings)
  model = tiny.multi_token_model(None, heads, tied_embeddings=is_tied, **SIZES)
  assert copies_of_weights(model, tree) == []
