"""Drafts of sequential heads: their caches, what they are told, the output."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decoding import (
  ROOT,
  WIDE,
  D,
  V,
  advance,
  candidates,
  random_params,
  random_requests,
  read,
  run,
  spec_of,
  start,
  to_decode,
)
from programs import computations

from mtpjax import config as config_lib
from mtpjax import decode, heads, parallel
from mtpjax.decode import batch, verifiers
from mtpjax.decode.drafters import sequential
from mtpjax.decode.drafters.sequential import ChainedHeads
from mtpjax.evals.drafts.candidate_ranks import candidate_ranks
from mtpjax.heads import HeadContext
from mtpjax.model import Placement

MODEL = heads.MultiTokenModel(
  config_lib.Model(
    vocab_size=V, d_model=D, n_layers=1, n_attention_heads=4, n_kv_heads=2,
    d_head=4, d_ff=32, dtype="float32",
  ),
  config_lib.Heads(
    kind="sequential", offsets=(1, 2, 3, 4, 5), tap="last", matched=False
  ),
  parallel.single_device_mesh(),
)  # fmt: skip
CHAIN = decode.Tree.chain(4)
TOKENS = 64


@functools.cache
def parameters(seed):
  """Heads that do about what the trunk does with the token they are told."""
  params = random_params(MODEL, seed)
  lm, own = params["lm"], params["heads"]
  for name in ("query", "key"):  # flatter attention rounds less
    lm["layers"]["attention"][name]["kernel"][:] *= 0.5
  for part, name in (
    ("attention", "query"), ("attention", "key"), ("attention", "value"),
    ("attention", "out"), ("mlp", "gate"), ("mlp", "up"), ("mlp", "down"),
  ):  # fmt: skip
    own["layer"][part][name]["kernel"][:] = lm["layers"][part][name]["kernel"]
  for name in ("attention_norm", "mlp_norm"):
    own["layer"][name]["scale"][:] = lm["layers"][name]["scale"]
  own["embedding_norm"]["scale"][:] = 1
  own["projection"]["kernel"][:] *= 0.2
  own["projection"]["kernel"][:, :D] += 0.4 * np.eye(D, dtype=np.float32)
  return params, to_decode(MODEL, params)


@jax.jit
def from_scratch(params, tokens_BT):
  """Logits [M, B, T, V] of all heads at all rows, as in training."""
  context = HeadContext(
    Placement.packed(
      jnp.broadcast_to(jnp.arange(TOKENS), tokens_BT.shape),
      jnp.ones_like(tokens_BT),
    )
  )
  lm = params["lm"]
  out = MODEL.apply_trunk(lm, tokens_BT, context.placement)
  stack = MODEL.wiring.stack(
    MODEL, params, out.tap_BTD, tokens_BT, context, jnp.zeros(4)
  )
  return MODEL.trunk.logits(lm, stack.per_offset)


@functools.partial(jax.jit, static_argnames="spec")
def drafts_and_logits(spec, params, tables, state):
  """The drafts of a program, and the logits along their best candidates."""
  noise = None
  if spec.stages.is_sampled and spec.verifier.shares_noise:
    noise = jnp.zeros((state.length_B.shape[0], spec.tree.max_depth + 1, V))
  drafts, _ = candidates(spec, params, tables, state, noise)
  logits_BMV = sequential.draft_logits(
    MODEL, params, spec.tree.max_depth, *state.draft,
    state.length_B, lambda depth, _: drafts.tokens_BMC[:, depth, 0],
  )  # fmt: skip
  return drafts, logits_BMV


def expected_logits(stacked, asked, state, tokens_BMC):
  """Those of whole texts with the drafts behind them, nothing cached."""
  tokens_BT = np.zeros((len(asked), TOKENS), np.int32)
  for b, (request, result) in enumerate(zip(asked, read(state), strict=True)):
    assert result.finish_reason == "running"
    text = [*request.ids, *result.ids, *tokens_BMC[b, :, 0].tolist()]
    tokens_BT[b, : len(text)] = text
  logits_MBTV = np.asarray(from_scratch(stacked, tokens_BT))
  last_B = np.asarray(state.length_B) - 1
  depths = tokens_BMC.shape[1]
  return np.stack(
    [logits_MBTV[:depths, b, last] for b, last in enumerate(last_B)]
  )


def requests_of(*lengths, temperature=0.0):
  rng = np.random.default_rng(0)
  return [
    decode.Request(
      tuple(rng.integers(0, V, n).tolist()),
      40,
      temperature=temperature,
      index=i,
    )
    for i, n in enumerate(lengths)
  ]


def compare(spec, tables, stacked, params, asked, state):
  with jax.default_matmul_precision("highest"):
    drafts, logits_BMV = drafts_and_logits(spec, params, tables, state)
    want_BMV = expected_logits(
      stacked, asked, state, np.asarray(drafts.tokens_BMC)
    )
  np.testing.assert_allclose(
    logits_BMV, want_BMV, rtol=0, atol=1e-5 * np.abs(want_BMV).max()
  )
  # Greedy rows: the candidates of a depth are the likeliest tokens there.
  want_BMC = np.argsort(-want_BMV, axis=-1)[..., : spec.tree.width]
  np.testing.assert_array_equal(drafts.tokens_BMC, want_BMC)


def test_drafts_equal_those_of_the_training_path_at_every_pass():
  stacked, params = parameters(1)
  # Texts shorter than the chain of heads, and longer ones.
  asked = requests_of(1, 2, 6, 17)
  shared = dict(drafter=ChainedHeads(4), room=5)
  spec, tables, state = start(MODEL, params, CHAIN, asked, **shared)
  programs = [spec_of(MODEL, tree, asked, **shared) for tree in (ROOT, WIDE)]
  programs = [spec, *programs, spec]
  before_B, sizes = np.asarray(state.length_B), set()
  for n in range(10):
    compare(spec, tables, stacked, params, asked, state)
    # Programs take turns on one state.
    state = advance(programs[n % 4], params, tables, state, 1)
    now_B = np.asarray(state.length_B)
    sizes |= set((now_B - before_B).tolist())
    before_B = now_B
  compare(programs[2], tables, stacked, params, asked, state)
  assert {1, 2, 3} <= sizes  # blocks of several sizes were committed


def test_a_program_keeps_no_more_than_it_drafts_with():
  stacked, params = parameters(2)
  asked = requests_of(1, 2, 6, 17)
  tree = decode.Tree.chain(2)
  spec, tables, state = start(MODEL, params, tree, asked)
  assert len(state.draft.caches) == 2
  assert state.draft.reached_BMD.shape == (4, 2, D)
  for _ in range(3):
    compare(spec, tables, stacked, params, asked, state)
    state = advance(spec, params, tables, state, 1)
  _, _, plain = start(MODEL, params, ROOT, asked)
  assert plain.draft == ()


def test_output_is_that_of_plain_decoding_and_ranks_of_chains_are_exact():
  stacked, params = parameters(3)
  asked = random_requests(3, 0.0)
  plain = run(MODEL, params, ROOT, asked)
  with jax.default_matmul_precision("highest"):
    ranks = candidate_ranks(MODEL, stacked, asked, plain, 4)
  accepted = 0
  for tree in (CHAIN, WIDE):
    # Rows of the batch are used again.
    results = run(MODEL, params, tree, asked, batch=2, chunk_passes=3)
    for result, one, ranks_NM in zip(results, plain, ranks, strict=True):
      assert result.ids == one.ids
      accepted += sum(origin > 0 for origin in result.origins)
      if tree is WIDE:
        continue
      at, passes = 0, 1
      while at < len(ranks_NM) - 1:
        wrong = np.flatnonzero(ranks_NM[at])
        at += 1 + (wrong[0] if len(wrong) else 4)
        passes += 1
      assert result.passes == passes
  assert accepted > 5


def test_drafts_with_probabilities_are_drawn_along_what_was_drawn():
  stacked, params = parameters(4)
  asked = requests_of(1, 2, 6, 17, temperature=0.7)
  spec, tables, state = start(
    MODEL, params, CHAIN, asked, verifier=verifiers.Rejection()
  )
  state = advance(spec, params, tables, state, 2)
  with jax.default_matmul_precision("highest"):
    drafts, logits_BMV = drafts_and_logits(spec, params, tables, state)
    want_BMV = expected_logits(
      stacked, asked, state, np.asarray(drafts.tokens_BMC)
    )
  np.testing.assert_allclose(
    logits_BMV, want_BMV, rtol=0, atol=1e-5 * np.abs(want_BMV).max()
  )
  np.testing.assert_allclose(
    drafts.probs_BMV, jax.nn.softmax(want_BMV / 0.7, axis=-1), atol=1e-5
  )
  # Drawn, and not always the likeliest.
  best_BM = np.argmax(want_BMV, axis=-1)
  assert np.any(drafts.tokens_BMC[..., 0] != best_BM)


@pytest.mark.parametrize("tree", [ROOT, CHAIN], ids=["plain", "chain"])
def test_no_pass_copies_a_cache(tree):
  _, params = parameters(1)
  asked = requests_of(1, 2, 6, 17)
  spec, tables, state = start(
    MODEL, params, tree, asked, drafter=ChainedHeads(4)
  )
  lowered = batch.run_chunk.lower(spec, params, tables, state, jnp.int32(5))
  shape = ",".join(map(str, state.draft.caches[0].keys_BKSH.shape))
  made = re.compile(rf"= f32\[{shape}\]\S* (copy|concatenate|scatter)\(")
  copies = [
    line
    for lines in computations(lowered.compile().as_text()).values()
    for line in lines
    if made.search(line)
  ]
  assert copies == []
