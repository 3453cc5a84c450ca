"""After many passes the caches hold what running everything anew gives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decoding import (
  CHAIN,
  WIDE,
  V,
  advance,
  candidates,
  multi_token_model,
  random_params,
  read,
  start,
  to_decode,
)

from mtpjax import decode
from mtpjax.heads import HeadContext
from mtpjax.model import Placement

MODEL = multi_token_model()
DEPTHS, TOKENS = 3, 64


@jax.jit
def from_scratch(params, tokens_BT):
  """Tap states, and the heads' logits, keys and values at all rows."""
  positions_BT = jnp.broadcast_to(jnp.arange(TOKENS), tokens_BT.shape)
  context = HeadContext(
    Placement.packed(positions_BT, jnp.ones_like(tokens_BT))
  )
  lm = params["lm"]
  tap_BTD = MODEL.trunk.apply(
    {"params": lm}, tokens_BT, context.placement
  ).tap_BTD

  def run_head(head_params):
    hidden_BTD = MODEL.apply_head(
      head_params, lm["final_norm"], tap_BTD, context
    )
    rows = MODEL.head.apply(
      {"params": head_params}, tap_BTD, positions_BT, method="rows"
    )
    return hidden_BTD @ lm["unembedding"], rows

  logits_MBTV, rows_M = jax.lax.map(run_head, params["heads"])
  return tap_BTD, logits_MBTV, rows_M


@pytest.mark.parametrize("tree", [CHAIN, WIDE], ids=["chain", "wide"])
def test_drafts_equal_those_of_the_training_path(tree):
  stacked = random_params(MODEL, 31)
  params = to_decode(MODEL, stacked)
  rng = np.random.default_rng(0)
  asked = [
    decode.Request(
      tuple(rng.integers(0, V, n).tolist()), 30, temperature=0.0, index=i
    )
    for i, n in enumerate((1, 6, 17, 30))
  ]
  spec, tables, state = start(MODEL, params, tree, asked)
  for _ in range(3):  # after the prompt's pass, after 7 more, after 14 more
    compare(spec, tables, stacked, params, asked, state)
    state = advance(spec, params, tables, state, 7)
  lengths = np.asarray(state.n_tokens_B)
  assert len(set(lengths.tolist())) > 1 and (lengths > 22).any()


def compare(spec, tables, stacked, params, asked, state):
  from mtpjax.decode.drafters import heads as drafter

  results = read(state)
  assert all(r.finish_reason == "running" for r in results)
  tokens_BT = np.zeros((4, TOKENS), np.int32)
  for b, (request, result) in enumerate(zip(asked, results, strict=True)):
    text = request.ids + result.ids
    tokens_BT[b, : len(text)] = text
    # The root's own row comes with the next pass.
    assert state.length_B[b] == len(text) - 1 and state.root_B[b] == text[-1]
  with jax.default_matmul_precision("highest"):
    tap_BTD, logits_MBTV, rows_M = from_scratch(stacked, tokens_BT)
    last_B = np.asarray(state.length_B) - 1
    ranked, _ = candidates(
      spec, params, tables, state, jnp.zeros((4, DEPTHS + 1, V))
    )
    logits_BMV = drafter.draft_logits(
      MODEL, params, DEPTHS, state.draft.caches,
      tap_BTD[np.arange(4), last_B], jnp.asarray(last_B),
    )  # fmt: skip
  for b, last in enumerate(last_B):
    want_DV = np.asarray(logits_MBTV[:, b, last])
    np.testing.assert_allclose(
      logits_BMV[b], want_DV, rtol=0, atol=1e-5 * np.abs(want_DV).max()
    )
    # Greedy rows: the candidates are the likeliest tokens of each head.
    want_DC = np.argsort(-want_DV, axis=-1)[:, : spec.tree.width]
    np.testing.assert_array_equal(ranked.tokens_BMC[b], want_DC)
    for m, cache in enumerate(state.draft.caches):
      for got, want in ((cache.keys_BKSH, rows_M.keys_BKSH),
                        (cache.values_BKSH, rows_M.values_BKSH)):  # fmt: skip
        got, want = got[b, :, : last + 1], want[m, b, :, : last + 1]
        np.testing.assert_allclose(
          got, want, rtol=0, atol=1e-5 * np.abs(want).max()
        )
