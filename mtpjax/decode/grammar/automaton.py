"""Grammars on the device: masks of allowed tokens, and where tokens lead.

A dense table of next states would be far too large (1,000 states of 50,000
tokens: 200 MB), so the masks are bits and the transitions a sorted list.

Axes: B requests, Q tree nodes, V vocabulary, G automaton states, W words of a
mask, E edges.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from mtpjax.decode.buckets import bucket
from mtpjax.decode.grammar.grammar import Grammar
from mtpjax.errors import UserError

FREE = 0  # the state of requests without a grammar
# Smallest buckets: most small grammars share one compiled program.
_MIN_STATES, _MIN_EDGES = 64, 1024


class Automaton(struct.PyTreeNode):
  """One table for all grammars of a batch.

  State FREE allows every token and is never left. G and E are powers of two;
  the states and edges that fill them up are never reached.

  Attributes:
    masks_GW: uint32, bit v % 32 of word v // 32 says whether v is allowed.
    starts_G1: int32, where the edges of each state begin, and the last end.
    tokens_E: int32, tokens, ascending within a state.
    next_E: int32, the state that each leads to.
  """

  masks_GW: jax.Array
  starts_G1: jax.Array
  tokens_E: jax.Array
  next_E: jax.Array


def merge(
  grammars: Sequence[Grammar], vocab_size: int
) -> tuple[Automaton, list[int]]:
  """Puts grammars into one automaton.

  Args:
    grammars: the grammars; none gives an automaton of the free state alone.
    vocab_size: V, of the model; it may be larger than the tokenizer's.

  Returns:
    The automaton, and the start state of each grammar.

  Raises:
    UserError: a grammar has ids beyond the vocabulary.
  """
  n_states = 1 + sum(grammar.n_states for grammar in grammars)
  n_edges = sum(len(grammar.tokens_E) for grammar in grammars)
  n_rows = bucket(n_states, _MIN_STATES)
  masks_GW = np.zeros((n_rows, -(-vocab_size // 32)), np.uint32)
  masks_GW[FREE] = np.uint32(0xFFFFFFFF)
  starts_G1 = np.full(n_rows + 1, n_edges, np.int32)
  starts_G1[: FREE + 2] = 0
  tokens_E = np.zeros(bucket(n_edges, _MIN_EDGES), np.int32)
  next_E = np.zeros_like(tokens_E)
  starts, state, edge = [], FREE + 1, 0
  for grammar in grammars:
    if grammar.vocab_size > vocab_size:
      raise UserError(
        f"grammar: compiled for a vocabulary of {grammar.vocab_size}, but the "
        f"model has {vocab_size}"
      )
    starts.append(state)
    span = slice(edge, edge + len(grammar.tokens_E))
    tokens_E[span] = grammar.tokens_E
    next_E[span] = grammar.next_E + state
    starts_G1[state : state + grammar.n_states] = grammar.starts_G1[:-1] + edge
    for row in range(grammar.n_states):
      masks_GW[state + row] = _pack(grammar.edges(row)[0], masks_GW.shape[1])
    state, edge = state + grammar.n_states, span.stop
  arrays = (masks_GW, starts_G1, tokens_E, next_E)
  return Automaton(*map(jnp.asarray, arrays)), starts


def allowed(
  automaton: Automaton, states_BQ: jax.Array, vocab_size: int
) -> jax.Array:
  """Looks up which tokens may come next.

  Args:
    automaton: the automaton.
    states_BQ: int, states of it.
    vocab_size: V, the same as of `merge`.

  Returns:
    bool [B, Q, V]. Ids that the tokenizer lacks are allowed in FREE only.
  """
  words_BQW = automaton.masks_GW[states_BQ]
  bits_BQW32 = (words_BQW[..., None] >> jnp.arange(32, dtype=jnp.uint32)) & 1
  # Stated in full: -1 can't be inferred when B or Q is 0.
  width = words_BQW.shape[-1] * 32
  return bits_BQW32.reshape(*states_BQ.shape, width)[..., :vocab_size] != 0


def advance(
  automaton: Automaton, states_BQ: jax.Array, tokens_BQ: jax.Array
) -> jax.Array:
  """Follows one token from each state.

  Args:
    automaton: the automaton.
    states_BQ: int, states of it.
    tokens_BQ: int, the tokens.

  Returns:
    int32 [B, Q], the states they lead to. A token that is not allowed leaves
    its state as it is; that makes no difference, because the mask of `allowed`
    keeps such a node from ever being reached.
  """
  states_BQ = states_BQ.astype(jnp.int32)
  low_BQ = automaton.starts_G1[states_BQ]
  end_BQ = automaton.starts_G1[states_BQ + 1]
  n_edges = automaton.tokens_E.shape[0]

  # The first edge whose token is not below ours. No state has more edges than
  # a mask has bits, so as many halvings will do.
  def halve(_, bounds):
    low_BQ, high_BQ = bounds
    middle_BQ = low_BQ + (high_BQ - low_BQ) // 2
    found_BQ = automaton.tokens_E[jnp.minimum(middle_BQ, n_edges - 1)]
    is_below_BQ = (low_BQ < high_BQ) & (found_BQ < tokens_BQ)
    return (
      jnp.where(is_below_BQ, middle_BQ + 1, low_BQ),
      jnp.where(is_below_BQ, high_BQ, middle_BQ),
    )

  most = min(n_edges, automaton.masks_GW.shape[1] * 32)
  low_BQ, _ = jax.lax.fori_loop(0, most.bit_length(), halve, (low_BQ, end_BQ))
  edge_BQ = jnp.minimum(low_BQ, n_edges - 1)
  is_edge_BQ = (low_BQ < end_BQ) & (automaton.tokens_E[edge_BQ] == tokens_BQ)
  return jnp.where(is_edge_BQ, automaton.next_E[edge_BQ], states_BQ)


def _pack(tokens: np.ndarray, n_words: int) -> np.ndarray:
  bits = np.zeros(n_words * 32, bool)
  bits[tokens] = True
  return np.packbits(bits, bitorder="little").view("<u4")
