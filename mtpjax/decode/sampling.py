"""From logits to tokens: one function and one order for all who choose.

Plain sampling, drafts, the targets that verify them and the token after the
last accepted one all go through `final_logits`. At temperature > 0 a token
then is arg max(final logits + Gumbel noise of its position): with the coupled
verifier target and draft see the same noise, so a draft is right exactly if
plain sampling would have drawn it, and the output does not depend on drafts.

Axes: B requests, Q nodes (or depths of drafts), V vocabulary, W sequences, L
tokens of a sequence.
"""

import jax
import jax.numpy as jnp
from flax import struct

from mtpjax.decode import filters
from mtpjax.decode.controls import Controls, Sequences, Stages
from mtpjax.decode.grammar import automaton as automata
from mtpjax.decode.grammar.automaton import Automaton
from mtpjax.decode.history import History


class Tables(struct.PyTreeNode):
  """What all requests of a run share.

  Attributes:
    eos_ids_E: ids that end a text; -1 matches nothing.
    automaton: of all grammars; None without.
    is_token_V: which ids the tokenizer has; None if it has them all.
  """

  eos_ids_E: jax.Array
  automaton: Automaton | None
  is_token_V: jax.Array | None = None


def final_logits(
  stages: Stages,
  tables: Tables,
  controls: Controls,
  seen_BV: jax.Array | None,
  history: History,
  logits_BQV: jax.Array,
) -> jax.Array:
  """Turns the model's logits into those that a token is drawn from.

  In this order: repetition, frequency and presence penalties; logit bias; bad
  words; least number of tokens; ids without a token; grammar; temperature;
  the filters.
  Each sees what the stage before it left.

  Args:
    stages: which of them there are; the others cost nothing.
    tables: EOS ids, grammars, and the ids that there are.
    controls: per request.
    seen_BV: tokens the prompt has; with penalties only.
    history: what stands before each node, the node itself included.
    logits_BQV: at least float32.

  Returns:
    [B, Q, V]; what can't be drawn is -inf. A row of temperature 0 is not
    divided; its arg max is what greedy decoding takes.
  """
  c = controls
  if stages.penalises:
    logits_BQV = _penalise(c, seen_BV, history.counts_BQV, logits_BQV)
  if c.bias_BV is not None:
    logits_BQV = logits_BQV + c.bias_BV[:, None]
  if stages.bans:
    logits_BQV = _ban(tables, c, history, logits_BQV)
  if tables.is_token_V is not None:
    logits_BQV = jnp.where(tables.is_token_V, logits_BQV, -jnp.inf)
  if tables.automaton is not None and history.grammar_BQ is not None:
    allowed_BQV = automata.allowed(
      tables.automaton, history.grammar_BQ, logits_BQV.shape[-1]
    )
    logits_BQV = jnp.where(allowed_BQV, logits_BQV, -jnp.inf)
  if stages.is_sampled:
    temperature_B11 = c.numbers["temperature"][:, None, None]
    logits_BQV = logits_BQV / jnp.where(temperature_B11 > 0, temperature_B11, 1)
  if stages.truncates:
    logits_BQV = filters.apply(c.numbers, logits_BQV)
  return logits_BQV


def choose(
  controls: Controls, logits_BQV: jax.Array, noise_BQV: jax.Array | None
) -> jax.Array:
  """Returns what the choice of a token is the arg max of.

  Args:
    controls: per request.
    logits_BQV: from `final_logits`.
    noise_BQV: from `noise.position_noise`; None if every row is greedy.

  Returns:
    [B, Q, V].
  """
  if noise_BQV is None:
    return logits_BQV
  is_sampled_B11 = controls.is_sampled_B[:, None, None]
  return jnp.where(is_sampled_B11, logits_BQV + noise_BQV, logits_BQV)


def _penalise(c, seen_BV, counts_BQV, logits_BQV):
  # Repetition after Keskar et al. (2019), section 4.1; the other two are those
  # that hosted models have made usual.
  repetition_B11 = c.numbers["repetition_penalty"][:, None, None]
  is_there_BQV = seen_BV[:, None] | (counts_BQV > 0)
  penalised_BQV = jnp.where(
    logits_BQV > 0, logits_BQV / repetition_B11, logits_BQV * repetition_B11
  )
  logits_BQV = jnp.where(is_there_BQV, penalised_BQV, logits_BQV)
  logits_BQV -= c.numbers["frequency_penalty"][:, None, None] * counts_BQV
  return logits_BQV - c.numbers["presence_penalty"][:, None, None] * (
    counts_BQV > 0
  )


def would_end(sequences: Sequences, recent_BQL: jax.Array) -> jax.Array:
  """Returns [B, Q, W]: would its last token complete this sequence?"""
  n = sequences.tokens_BWL.shape[-1]
  # All but the last token of a sequence, against the last tokens of the text.
  begins_BWL = sequences.tokens_BWL[..., :-1]
  is_used_BWL = jnp.arange(1, n) > n - sequences.lengths_BW[..., None]
  recent_BQL = recent_BQL[..., recent_BQL.shape[-1] - (n - 1) :]
  is_equal_BQWL = recent_BQL[:, :, None] == begins_BWL[:, None]
  there_BQW = jnp.all(is_equal_BQWL | ~is_used_BWL[:, None], axis=-1)
  return there_BQW & (sequences.lengths_BW[:, None] > 0)


def has_ended(sequences: Sequences, recent_BQL: jax.Array) -> jax.Array:
  """Returns [B, Q]: do these last tokens of a text end with a sequence?"""
  last_BW = sequences.tokens_BWL[..., -1]
  is_last_BQW = recent_BQL[..., -1, None] == last_BW[:, None]
  before_BQL = recent_BQL[..., :-1]
  return jnp.any(is_last_BQW & would_end(sequences, before_BQL), axis=-1)


def _ban(tables, c, history, logits_BQV):
  """Bad words, and whatever would end a text that is still too short."""
  b, q, _ = logits_BQV.shape
  is_short_BQ = history.n_generated_BQ < c.numbers["min_new_tokens"][:, None]

  def ban(logits_BQV, tokens_BQW, is_banned_BQW):
    # A token that may stay is lowered by nothing.
    return logits_BQV.at[
      jnp.arange(b)[:, None, None], jnp.arange(q)[:, None], tokens_BQW
    ].add(jnp.where(is_banned_BQW, -jnp.inf, 0))

  def last_tokens(sequences):
    last_BW = sequences.tokens_BWL[..., -1]
    return jnp.broadcast_to(last_BW[:, None], (b, q, last_BW.shape[-1]))

  logits_BQV = ban(
    logits_BQV,
    last_tokens(c.bad_words),
    would_end(c.bad_words, history.recent_BQL),
  )
  if c.stop_sequences is not None:
    logits_BQV = ban(
      logits_BQV,
      last_tokens(c.stop_sequences),
      would_end(c.stop_sequences, history.recent_BQL) & is_short_BQ[..., None],
    )
  is_eos_E = tables.eos_ids_E >= 0
  eos_BQE = jnp.broadcast_to(
    jnp.maximum(tables.eos_ids_E, 0), (b, q, tables.eos_ids_E.shape[0])
  )
  return ban(logits_BQV, eos_BQE, is_short_BQ[..., None] & is_eos_E)
