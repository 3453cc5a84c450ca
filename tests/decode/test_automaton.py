"""Masks and transitions on the device against plain walks of the grammars."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mtpjax.decode.grammar import automaton as automata
from mtpjax.decode.grammar import compile_regex
from mtpjax.decode.grammar.automaton import (
  FREE,
  Automaton,
  advance,
  allowed,
  merge,
)
from mtpjax.errors import UserError

TOKENS = {i: t for i, t in enumerate([b"a", b"b", b"c", b"ab", b"abc", b"bb"])}
TOKENS[33] = b"ca"
EOS_IDS = (40, 41)
TOKENIZER_SIZE, VOCAB_SIZE = 42, 70  # three words of mask, the last in part


@pytest.fixture(scope="module")
def grammars():
  return [
    compile_regex(pattern, TOKENS, EOS_IDS, TOKENIZER_SIZE)
    for pattern in ("a*b", "(ab|c){2,5}a?", "(bb|ca)*")
  ]


def tables(automaton):
  """Returns allowed [G, V] and next states [G, V] of the whole automaton."""
  n_states = automaton.masks_GW.shape[0]
  states_G1 = jnp.arange(n_states)[:, None]
  states_GV = jnp.broadcast_to(states_G1, (n_states, VOCAB_SIZE))
  tokens_GV = jnp.broadcast_to(jnp.arange(VOCAB_SIZE), states_GV.shape)
  allowed_G1V = jax.jit(allowed, static_argnums=2)(
    automaton, states_G1, VOCAB_SIZE
  )
  next_GV = jax.jit(advance)(automaton, states_GV, tokens_GV)
  return np.asarray(allowed_G1V)[:, 0], np.asarray(next_GV)


def check_rows(allowed_GV, next_GV, grammar, start):
  for state in range(grammar.n_states):
    plain = dict(
      zip(*map(np.ndarray.tolist, grammar.edges(state)), strict=True)
    )
    row = start + state
    assert np.flatnonzero(allowed_GV[row]).tolist() == sorted(plain)
    for token in range(VOCAB_SIZE):
      assert next_GV[row, token] == start + plain.get(token, state)


def test_merged_grammars_are_each_as_alone_and_as_a_plain_walk(grammars):
  merged, starts = merge(grammars, VOCAB_SIZE)
  assert len(set(starts)) == 3 and FREE not in starts
  found = tables(merged)
  for grammar, start in zip(grammars, starts, strict=True):
    check_rows(*found, grammar, start)
    alone, (start_alone,) = merge([grammar], VOCAB_SIZE)
    check_rows(*tables(alone), grammar, start_alone)


def test_free_state_allows_everything_and_is_never_left(grammars):
  for automaton in (merge(grammars, VOCAB_SIZE)[0], merge([], VOCAB_SIZE)[0]):
    allowed_GV, next_GV = tables(automaton)
    assert allowed_GV[FREE].all() and allowed_GV.shape[1] == VOCAB_SIZE
    assert (next_GV[FREE] == FREE).all()


def test_walks_in_batches_under_jit(grammars):
  merged, starts = merge(grammars, VOCAB_SIZE)
  rng = np.random.default_rng(0)
  states_BQ = np.asarray([[FREE, *starts]] * 4)
  places = [[None] + [(g, 0) for g in grammars] for _ in range(4)]
  step = jax.jit(advance)
  look = jax.jit(allowed, static_argnums=2)
  for _ in range(8):
    allowed_BQV = np.asarray(look(merged, states_BQ, VOCAB_SIZE))
    tokens_BQ = np.zeros_like(states_BQ)
    for b, q in np.ndindex(states_BQ.shape):
      tokens_BQ[b, q] = rng.choice(np.flatnonzero(allowed_BQV[b, q]))
      if places[b][q]:
        grammar, state = places[b][q]
        tokens, nexts = grammar.edges(state)
        (edge,) = np.flatnonzero(tokens == tokens_BQ[b, q])
        places[b][q] = grammar, int(nexts[edge])
    states_BQ = np.asarray(step(merged, states_BQ, tokens_BQ))
    for b, q in np.ndindex(states_BQ.shape):
      expected = starts[q - 1] + places[b][q][1] if places[b][q] else FREE
      assert states_BQ[b, q] == expected


def test_tokens_outside_the_vocabulary_leave_the_state(grammars):
  merged, starts = merge(grammars, VOCAB_SIZE)
  states_BQ = jnp.asarray([starts, starts])
  tokens_BQ = jnp.asarray([[-1] * 3, [2**31 - 1] * 3])
  assert (advance(merged, states_BQ, tokens_BQ) == states_BQ).all()


def test_padding_changes_nothing(grammars, monkeypatch):
  found = {}
  for smallest in ((1, 1), (64, 1024)):
    monkeypatch.setattr(automata, "_MIN_STATES", smallest[0])
    monkeypatch.setattr(automata, "_MIN_EDGES", smallest[1])
    merged, starts = merge(grammars, VOCAB_SIZE)
    n_states = 1 + sum(grammar.n_states for grammar in grammars)
    found[smallest] = [table[:n_states] for table in tables(merged)]
    for array in (merged.masks_GW, merged.tokens_E, merged.next_E):
      assert array.shape[0].bit_count() == 1
    assert all(int(array.min()) >= 0 for array in jax.tree.leaves(merged))
  for tight, padded in zip(*found.values(), strict=True):
    np.testing.assert_array_equal(tight, padded)


def test_grammars_of_one_bucket_share_a_program(grammars):
  n_traces = 0

  @jax.jit
  def step(automaton: Automaton, states_BQ, tokens_BQ):
    nonlocal n_traces
    n_traces += 1
    states_BQ = advance(automaton, states_BQ, tokens_BQ)
    return allowed(automaton, states_BQ, VOCAB_SIZE)

  for some in ([], grammars[:1], grammars[1:], grammars):
    merged, _ = merge(some, VOCAB_SIZE)
    step(merged, jnp.zeros((2, 3), jnp.int32), jnp.ones((2, 3), jnp.int32))
  assert n_traces == 1


def test_a_smaller_model_is_refused(grammars):
  with pytest.raises(UserError, match="42.*41"):
    merge(grammars, 41)
