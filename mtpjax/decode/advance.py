"""The text goes on: what a token's choice reads, and what committing writes."""

import jax
import jax.numpy as jnp

from mtpjax.decode import endings, history
from mtpjax.decode.grammar import automaton as automata
from mtpjax.decode.sampling import Tables, final_logits, has_ended
from mtpjax.decode.spec import Spec
from mtpjax.decode.state import DecodeState, write_block
from mtpjax.decode.tree import Tree


def final_at_nodes(
  spec: Spec,
  tables: Tables,
  state: DecodeState,
  tree: Tree,
  tokens_BQ: jax.Array,
  logits_BQV: jax.Array,
) -> jax.Array:
  """Returns logits [B, Q, V] after the pipeline, each node's own history."""
  return final_logits(
    spec.stages,
    tables,
    state.controls,
    state.seen_BV,
    history.at_nodes(state, tables.automaton, tree, tokens_BQ),
    logits_BQV,
  )


def advance(
  tables: Tables,
  state: DecodeState,
  tokens_BJ: jax.Array,
  logprobs_BJ: jax.Array,
  n_tokens_B: jax.Array,
  origins_BJ: jax.Array,
  n_proposed_B: jax.Array,
) -> DecodeState:
  """Commits a block after the root; its rows are in the caches already.

  Whatever counts, counts only what is left after the block was cut.

  Args:
    tables: EOS ids and grammars.
    state: what was committed before.
    tokens_BJ: the block.
    logprobs_BJ: its log-probabilities under the model.
    n_tokens_B: how many of its tokens count.
    origins_BJ: the node that proposed each; 0 for the last one.
    n_proposed_B: drafts that the pass verified.

  Returns:
    The state after the block.
  """
  stops = state.controls.stop_sequences
  is_stop_BJ = None
  if stops is not None:
    longest = stops.tokens_BWL.shape[-1]
    joined_BX = jnp.concatenate(
      [history.recent_tokens(state, longest), tokens_BJ], axis=1
    )
    window_JL = (
      1 + jnp.arange(tokens_BJ.shape[1])[:, None] + jnp.arange(longest)
    )
    is_stop_BJ = has_ended(stops, joined_BX[:, window_JL])
  n_B, finish_B = endings.truncate(
    tokens_BJ,
    n_tokens_B,
    tables.eos_ids_E,
    is_stop_BJ,
    state.controls.max_new_B - state.n_tokens_B,
    state.finish_B,
  )
  is_new_BJ = jnp.arange(tokens_BJ.shape[1]) < n_B[:, None]
  counts_BV, grammar_B = state.counts_BV, state.grammar_B
  if counts_BV is not None:
    rows_B1 = jnp.arange(tokens_BJ.shape[0])[:, None]
    counts_BV = counts_BV.at[rows_B1, tokens_BJ].add(
      is_new_BJ.astype(counts_BV.dtype)
    )
  if tables.automaton is not None:
    for j in range(tokens_BJ.shape[1]):
      following_B = automata.advance(
        tables.automaton, grammar_B[:, None], tokens_BJ[:, j, None]
      )[:, 0]
      grammar_B = jnp.where(is_new_BJ[:, j], following_B, grammar_B)
  moved_B = n_B > 0
  n_passes_B = state.n_passes_B + moved_B
  total_B = state.n_proposed_B + jnp.where(moved_B, n_proposed_B, 0)
  start_B = state.length_B + 1

  def write(buffer_BS: jax.Array, block: jax.Array) -> jax.Array:
    block = block[:, None] if block.ndim == 1 else block
    return write_block(
      buffer_BS, jnp.broadcast_to(block, tokens_BJ.shape), start_B
    )

  return state.replace(
    tokens_BS=write(state.tokens_BS, tokens_BJ),
    logprobs_BS=write(state.logprobs_BS, logprobs_BJ),
    passes_BS=write(state.passes_BS, n_passes_B),
    proposed_BS=write(state.proposed_BS, total_B),
    origins_BS=write(state.origins_BS, origins_BJ),
    length_B=state.length_B + n_B,
    finish_B=finish_B,
    n_passes_B=n_passes_B,
    n_proposed_B=total_B,
    counts_BV=counts_BV,
    grammar_B=grammar_B,
  )
