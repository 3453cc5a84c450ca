"""What stands before each node of a tree: committed text and its own path.

Axes: B requests, Q nodes, D depths of the tree, L tokens looked back at, V
vocabulary.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from mtpjax.decode.grammar import automaton as automata
from mtpjax.decode.grammar.automaton import Automaton
from mtpjax.decode.state import DecodeState
from mtpjax.decode.tree import Tree

NO_TOKEN = -1  # equals no id; never an index


class History(struct.PyTreeNode):
  """The history at each node; None where no stage of a program needs it.

  Attributes:
    n_generated_BQ: tokens of the text, the node's own included.
    counts_BQV: how often the text has each token.
    recent_BQL: its last tokens, NO_TOKEN before its beginning.
    grammar_BQ: state of the grammar.
  """

  n_generated_BQ: jax.Array
  counts_BQV: jax.Array | None
  recent_BQL: jax.Array | None
  grammar_BQ: jax.Array | None


def recent_tokens(state: DecodeState, n: int) -> jax.Array:
  """Returns the last n generated tokens [B, n], the root included."""
  positions_BL = state.length_B[:, None] + jnp.arange(1 - n, 1)
  is_text_BL = positions_BL >= state.prompt_length_B[:, None]
  tokens_BL = jnp.take_along_axis(
    state.tokens_BS, jnp.maximum(positions_BL, 0), axis=1
  )
  return jnp.where(is_text_BL, tokens_BL, NO_TOKEN)


def at_nodes(
  state: DecodeState,
  automaton: Automaton | None,
  tree: Tree,
  tokens_BQ: jax.Array,
) -> History:
  """Returns the history after each node of a tree.

  Args:
    state: its root is committed.
    automaton: of the grammars, if there are any.
    tree: the tree.
    tokens_BQ: its tokens, the root's included.

  Returns:
    Each node's own history; siblings don't see each other.
  """
  depth_Q = jnp.asarray(tree.depth_Q)
  # Tokens of the path to each node without the root: [B, Q, D].
  path_QD = jnp.asarray(tree.paths_QJ[:, 1:])
  path_BQD = tokens_BQ[:, path_QD]
  counts_BQV = recent_BQL = grammar_BQ = None
  if state.counts_BV is not None:
    b, q, d = path_BQD.shape
    is_own_QD = (jnp.arange(d) < depth_Q[:, None]).astype(jnp.int32)
    counts_BQV = jnp.broadcast_to(
      state.counts_BV[:, None], (b, q, state.counts_BV.shape[1])
    )
    counts_BQV = counts_BQV.at[
      jnp.arange(b)[:, None, None], jnp.arange(q)[:, None], path_BQD
    ].add(jnp.broadcast_to(is_own_QD, path_BQD.shape))
  longest = _longest(state)
  if longest:
    recent_BL = recent_tokens(state, longest)
    joined_BQX = jnp.concatenate(
      [
        jnp.broadcast_to(recent_BL[:, None], (*path_BQD.shape[:2], longest)),
        path_BQD,
      ],
      axis=-1,
    )
    window_QL = depth_Q[:, None] + jnp.arange(longest)
    recent_BQL = jnp.take_along_axis(joined_BQX, window_QL[None], axis=-1)
  if automaton is not None:
    grammar_BQ = jnp.repeat(state.grammar_B[:, None], tree.size, axis=1)
    for depth in range(1, tree.max_depth + 1):
      nodes = np.flatnonzero(tree.depth_Q == depth)
      parents = np.asarray(tree.parents)[nodes]
      grammar_BQ = grammar_BQ.at[:, nodes].set(
        automata.advance(automaton, grammar_BQ[:, parents], tokens_BQ[:, nodes])
      )
  return History(
    state.n_tokens_B[:, None] + depth_Q, counts_BQV, recent_BQL, grammar_BQ
  )


def of_drafts(state: DecodeState, depths: int) -> History:
  """Returns the history that drafts see: the committed text alone.

  The drafts of parallel heads are one list per depth, whatever stands before
  them on a path. How many tokens that is they know, but not which: after
  depth 1 no sequence is known to have begun, and the grammar is where it may
  be anywhere.

  Args:
    state: its root is committed.
    depths: D.

  Returns:
    The history [B, D, ...] of the drafts of every depth.
  """
  is_first_D = jnp.arange(depths) == 0

  def repeat(x: jax.Array | None) -> jax.Array | None:
    if x is None:
      return None
    return jnp.broadcast_to(x[:, None], (x.shape[0], depths, *x.shape[1:]))

  longest = _longest(state)
  recent_BDL = None
  if longest:
    recent_BL = recent_tokens(state, longest)
    recent_BDL = jnp.where(is_first_D[:, None], recent_BL[:, None], NO_TOKEN)
  return History(
    state.n_tokens_B[:, None] + jnp.arange(depths),
    repeat(state.counts_BV),
    recent_BDL,
    jnp.where(is_first_D, state.grammar_B[:, None], automata.FREE),
  )


def _longest(state: DecodeState) -> int:
  """Returns the longest sequence that is looked for, 0 if none is."""
  controls = state.controls
  return max(
    (
      sequences.tokens_BWL.shape[-1]
      for sequences in (controls.bad_words, controls.stop_sequences)
      if sequences is not None
    ),
    default=0,
  )
