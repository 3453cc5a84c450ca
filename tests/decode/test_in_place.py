"""A chunk of passes leaves every cache where it lies."""

import re

import jax.numpy as jnp
import pytest
from decoding import (
  CHAIN,
  ROOT,
  WIDE,
  multi_token_model,
  random_params,
  random_requests,
  start,
  to_decode,
)
from programs import computations

from mtpjax.decode import batch, step

MODEL = multi_token_model()


def copies_of_caches(tree, **changes):
  """Lists what the compiled chunk makes of a whole cache, in any loop."""
  params = to_decode(MODEL, random_params(MODEL, 1))
  asked = random_requests(1, 0.8)
  spec, tables, state = start(MODEL, params, tree, asked, (3,), **changes)
  lowered = batch.run_chunk.lower(spec, params, tables, state, jnp.int32(5))
  compiled = lowered.compile()
  shape = state.cache[0].keys_BKSH.shape
  size = f"f32[{','.join(map(str, shape))}]"
  made = re.compile(rf"= {re.escape(size)}\S* (copy|concatenate|scatter)\(")
  return [
    line.strip()
    for lines in computations(compiled.as_text()).values()
    for line in lines
    if made.search(line)
  ]


@pytest.mark.parametrize(
  "tree, changes",
  [(ROOT, {}), (ROOT, {"kept_heads": 3}), (CHAIN, {}), (WIDE, {})],
  ids=["plain", "plain-keeping-heads", "chain", "wide"],
)
def test_no_pass_copies_a_cache(tree, changes):
  assert copies_of_caches(tree, **changes) == []


def test_a_copy_would_be_seen(monkeypatch):
  def committed_early(cache, rows, path_BJ, start_B):
    del start_B  # the place that waits for the reads
    return real(cache, rows, path_BJ, jnp.full(4, 7))

  real = step.cache.commit
  monkeypatch.setattr(step.cache, "commit", committed_early)
  assert copies_of_caches(ROOT, room=2)
