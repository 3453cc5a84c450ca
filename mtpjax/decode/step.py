"""One pass of decoding, a pure function of parameters and state."""

from typing import Any

import jax
import jax.numpy as jnp

from mtpjax.decode import sampling, verify
from mtpjax.decode.drafters import heads as drafter
from mtpjax.decode.state import (
  DecodeState,
  Spec,
  token_logprobs,
  write_block,
)
from mtpjax.model import cache, masks


def prefill(
  spec: Spec,
  params: Any,
  prompt_BT: jax.Array,
  prompt_length_B: jax.Array,
  state: DecodeState,
) -> DecodeState:
  """Runs the prompts, commits their first token and proposes drafts.

  Args:
    spec: model and tree.
    params: from `decode_params`.
    prompt_BT: prompts, padded on the right with any ids.
    prompt_length_B: their lengths, at least 1.
    state: an empty state, see `loop.empty_state`.

  Returns:
    The state after the first token.
  """
  model, n = spec.model, prompt_BT.shape[1]
  positions_BT = jnp.broadcast_to(jnp.arange(n), prompt_BT.shape)
  is_prompt_BT = positions_BT < prompt_length_B[:, None]
  out = model.apply_trunk(
    params["lm"],
    prompt_BT,
    positions_BT,
    masks.packed(is_prompt_BT.astype(jnp.int32)),
  )
  filled = map(cache.fill, state.cache, out.rows)
  head_caches = drafter.fill(
    model, params["heads"], state.head_caches, out.tap_BTD, positions_BT
  )
  last_B11 = (prompt_length_B - 1)[:, None, None]
  hidden_B1D = jnp.take_along_axis(out.hidden_BTD, last_B11, axis=1)
  tap_BD = jnp.take_along_axis(out.tap_BTD, last_B11, axis=1)[:, 0]
  logits_B1V = model.trunk.logits(params["lm"], hidden_B1D)
  tokens_B1 = _choose(spec, state, logits_B1V, prompt_length_B[:, None])
  state = state.replace(
    cache=tuple(filled),
    head_caches=head_caches,
    length_B=prompt_length_B - 1,
  )
  return _advance(
    spec,
    params,
    state,
    tokens_B1,
    token_logprobs(logits_B1V, tokens_B1),
    jnp.ones_like(prompt_length_B),
    tap_BD,
  )


def step(spec: Spec, params: Any, state: DecodeState) -> DecodeState:
  """Drafts fill the tree, one pass verifies them, the accepted path stays.

  Args:
    spec: model and tree.
    params: from `decode_params`.
    state: the state; the cache has room for the tree's longest path.

  Returns:
    The next state. Rows that have finished stay as they are.
  """
  model, tree = spec.model, spec.tree
  depth_Q, ranks_Q = jnp.asarray(tree.depth_Q), jnp.asarray(tree.ranks)
  tokens_BQ = jnp.concatenate(
    [
      state.root_B[:, None],
      state.candidates_BMC[:, depth_Q[1:] - 1, ranks_Q[1:]],
    ],
    axis=1,
  )
  positions_BQ = state.length_B[:, None] + depth_Q
  out = model.apply_trunk(
    params["lm"],
    tokens_BQ,
    positions_BQ,
    masks.tree(jnp.asarray(tree.ancestors_QQ), state.length_B),
    state.cache,
  )
  logits_BQV = model.trunk.logits(params["lm"], out.hidden_BTD)
  targets_BQ = _choose(spec, state, logits_BQV, positions_BQ + 1)
  verdict = verify.verify(tree, tokens_BQ, targets_BQ)
  path_BJ = verdict.path_BJ
  logprobs_BQ = token_logprobs(logits_BQV, targets_BQ)
  committed = [
    cache.commit(c, rows, path_BJ, state.length_B)
    for c, rows in zip(state.cache, out.rows, strict=True)
  ]
  head_caches = drafter.commit(
    model, params["heads"], state.head_caches, out.tap_BTD, positions_BQ,
    path_BJ, state.length_B,
  )  # fmt: skip
  last_B11 = path_BJ[:, -1][:, None, None]
  tap_BD = jnp.take_along_axis(out.tap_BTD, last_B11, axis=1)[:, 0]
  return _advance(
    spec,
    params,
    state.replace(cache=tuple(committed), head_caches=head_caches),
    verdict.tokens_BJ,
    jnp.take_along_axis(logprobs_BQ, path_BJ, axis=1),
    verdict.n_tokens_B,
    tap_BD,
  )


def _choose(
  spec: Spec, state: DecodeState, logits_BTV: jax.Array, positions_BT: jax.Array
) -> jax.Array:
  """Returns the tokens the model chooses for these absolute positions."""
  return jnp.argmax(_scores(spec, state, logits_BTV, positions_BT), axis=-1)


def _scores(spec, state, logits_BTV, positions_BT) -> jax.Array:
  noise_BTV = None
  if spec.is_sampled:
    noise_BTV = sampling.position_noise(
      state.keys_B, positions_BT, logits_BTV.shape[-1]
    )
  return sampling.scores(logits_BTV, state.temperature_B, noise_BTV)


def _advance(
  spec: Spec,
  params: Any,
  state: DecodeState,
  tokens_BJ: jax.Array,
  logprobs_BJ: jax.Array,
  n_tokens_B: jax.Array,
  tap_BD: jax.Array,
) -> DecodeState:
  """Commits a block that began behind `length_B`, and proposes again.

  `state` has the rows of the block's path in its caches already.
  """
  n_B, finish_B = verify.truncate(
    tokens_BJ, n_tokens_B, state.eos_ids_E, state.budget_B, state.finish_B
  )
  last_BJ = jnp.maximum(n_B - 1, 0)[:, None]
  last_token_B = jnp.take_along_axis(tokens_BJ, last_BJ, axis=1)[:, 0]
  length_B = state.length_B + n_B
  state = state.replace(
    root_B=jnp.where(n_B > 0, last_token_B, state.root_B),
    length_B=length_B,
    tokens_BT=write_block(state.tokens_BT, tokens_BJ, state.n_tokens_B),
    logprobs_BT=write_block(state.logprobs_BT, logprobs_BJ, state.n_tokens_B),
    n_tokens_B=state.n_tokens_B + n_B,
    budget_B=state.budget_B - n_B,
    finish_B=finish_B,
    passes_B=state.passes_B + (n_B > 0),
  )
  depths = spec.tree.max_depth
  if not depths:
    return state
  # The last accepted row stands before the new root. A block that was cut
  # belongs to a row that has finished, whose drafts nobody reads.
  position_B = length_B - 1
  logits_BMV = drafter.draft_logits(
    spec.model, params, depths, state.head_caches, tap_BD, position_B
  )
  positions_BM = length_B[:, None] + jnp.arange(1, depths + 1)
  _, candidates_BMC = jax.lax.top_k(
    _scores(spec, state, logits_BMV, positions_BM), spec.tree.width
  )
  return state.replace(candidates_BMC=candidates_BMC)
