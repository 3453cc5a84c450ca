"""A pass over a tree gives every node what a text of its own would get."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import programs
import pytest
from decoding import (
  CHAIN,
  REPLAYED,
  V,
  advance,
  multi_token_model,
  random_params,
  read,
  start,
  to_decode,
)

from mtpjax import config as config_lib
from mtpjax import decode
from mtpjax.model import Placement, masks

MODEL = multi_token_model()
NODES = 12
LENGTHS = (1, 2, 13, 20)  # of prompts; one more token is committed
GARBAGE = 1e6  # of the kind that a mask must keep out altogether


@programs.full_jit
def tree_logits(params, tokens_BQ, depth_Q, ancestors_QQ, length_B, cache):
  """As `step` runs its trees; of any tree of NODES nodes."""
  out = MODEL.apply_trunk(
    params["lm"],
    tokens_BQ,
    Placement(length_B[:, None] + depth_Q, masks.Tree(ancestors_QQ, length_B)),
    cache,
  )
  return MODEL.trunk.logits(params["lm"], out.hidden_BTD)


@programs.full_jit
def text_logits(lm_params, tokens_T):
  """Without cache and tree, behind the last token of a text from zeros on."""
  out = MODEL.trunk.clone(tap=config_lib.TAPS["last"]).apply(
    {"params": lm_params},
    tokens_T[None],
    Placement.whole(tokens_T[None]),
  )
  return MODEL.trunk.logits(lm_params, out.hidden_BTD)[0]


def random_tree(rng):
  """Chains, stars and all between: how far back a parent may be varies."""
  reach = rng.choice([1, 2, 4, NODES])
  parents, ranks = [0], [0]
  for node in range(1, NODES):
    parent = int(rng.integers(max(node - reach, 0), node))
    ranks.append(sum(p == parent for p in parents[1:]))
    parents.append(parent)
  return decode.Tree(tuple(parents), tuple(ranks))


@functools.cache
def prompted(seed):
  """(stacked parameters, those of decoding, prompts, state behind them)."""
  stacked = random_params(MODEL, seed)
  rng = np.random.default_rng(seed)
  asked = [
    decode.Request(tuple(rng.integers(0, V, n).tolist()), 24) for n in LENGTHS
  ]
  params = to_decode(MODEL, stacked)
  _, _, state = start(MODEL, params, CHAIN, asked)
  return stacked, params, asked, jax.device_get(state)


def run(params, state, tree, tokens_BQ, cache=None):
  with jax.default_matmul_precision("highest"):
    return np.asarray(
      tree_logits(
        params,
        jnp.asarray(tokens_BQ, jnp.int32),
        jnp.asarray(tree.depth_Q),
        jnp.asarray(tree.ancestors_QQ),
        jnp.asarray(state.length_B),
        state.cache if cache is None else cache,
      )
    )


def tokens_of(rng, state, tree):
  """Random tokens; siblings may be equal, which must not matter here."""
  tokens_BQ = rng.integers(0, V, (len(LENGTHS), tree.size))
  rows_B = np.arange(len(LENGTHS))
  tokens_BQ[:, 0] = state.tokens_BS[rows_B, state.length_B]
  return tokens_BQ


@pytest.mark.parametrize("seed", range(4))
def test_each_node_has_the_logits_of_its_own_text(seed):
  stacked, params, asked, state = prompted(41)
  rng = np.random.default_rng(seed)
  tree = random_tree(rng)
  tokens_BQ = tokens_of(rng, state, tree)
  got_BQV = run(params, state, tree, tokens_BQ)
  for b, request in enumerate(asked):
    for node in range(tree.size):
      path = tree.paths_QJ[node][: tree.depth_Q[node] + 1]
      text = (*request.ids, *tokens_BQ[b, path])
      tokens_T = np.zeros(REPLAYED, np.int32)
      tokens_T[: len(text)] = text
      with jax.default_matmul_precision("highest"):
        logits_TV = np.asarray(text_logits(stacked["lm"], tokens_T))
      want_V = logits_TV[len(text) - 1]
      np.testing.assert_allclose(
        got_BQV[b, node], want_V, rtol=0, atol=1e-5 * np.abs(want_V).max()
      )


@pytest.mark.parametrize("seed", range(4))
def test_a_node_changes_itself_and_what_is_behind_it_and_nothing_else(seed):
  _, params, _, state = prompted(41)
  rng = np.random.default_rng(10 + seed)
  tree = random_tree(rng)
  tokens_BQ = tokens_of(rng, state, tree)
  before_BQV = run(params, state, tree, tokens_BQ)
  for node in range(1, tree.size):
    changed_BQ = tokens_BQ.copy()
    changed_BQ[:, node] = (changed_BQ[:, node] + rng.integers(1, V, 4)) % V
    is_same_BQ = np.all(
      run(params, state, tree, changed_BQ) == before_BQV, axis=-1
    )
    for b in range(len(LENGTHS)):
      np.testing.assert_array_equal(is_same_BQ[b], ~tree.ancestors_QQ[:, node])


def test_rows_of_the_cache_behind_its_length_count_for_nothing():
  _, params, _, state = prompted(41)
  rng = np.random.default_rng(5)
  tree = random_tree(rng)
  tokens_BQ = tokens_of(rng, state, tree)
  before_BQV = run(params, state, tree, tokens_BQ)

  def spoil(x_BKSH, last=0):
    x_BKSH = np.array(x_BKSH)
    for b, length in enumerate(state.length_B):
      beyond = x_BKSH[b, :, length - last :]
      beyond[:] = GARBAGE * rng.normal(size=beyond.shape)
    return jnp.asarray(x_BKSH)

  np.testing.assert_array_equal(
    run(params, state, tree, tokens_BQ, jax.tree.map(spoil, state.cache)),
    before_BQV,
  )
  # One row further in, it would be seen, in every row of the batch.
  seen = jax.tree.map(functools.partial(spoil, last=1), state.cache)
  spoilt_BQV = run(params, state, tree, tokens_BQ, seen)
  assert (spoilt_BQV != before_BQV).any(axis=(1, 2)).all()


def test_drafts_and_texts_do_not_see_the_spoilt_rows_either():
  """The same for whole passes: trunk and heads, and texts that go on."""
  _, params, asked, _ = prompted(41)

  def spoil(state):
    at_S = jnp.arange(state.tokens_BS.shape[1])
    beyond_B1S1 = (at_S >= state.length_B[:, None])[:, None, :, None]
    caches = jax.tree.map(
      lambda x: jnp.where(beyond_B1S1, GARBAGE, x),
      (state.cache, state.draft.caches),
    )
    return state.replace(
      cache=caches[0],
      draft=state.draft._replace(caches=caches[1]),
      # Ids of a text that was here before.
      tokens_BS=jnp.where(
        at_S > state.length_B[:, None], V - 1, state.tokens_BS
      ),
    )

  def text_behind(change):
    spec, tables, state = start(MODEL, params, CHAIN, asked)
    return read(advance(spec, params, tables, change(state), 64))

  assert text_behind(spoil) == text_behind(lambda state: state)
