"""The first pass: prompts are run, and their first token is committed."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from mtpjax.decode import noise
from mtpjax.decode.advance import advance, final_at_nodes
from mtpjax.decode.drafters import Prompts
from mtpjax.decode.sampling import Tables, choose
from mtpjax.decode.spec import Spec
from mtpjax.decode.state import DecodeState, token_logprobs
from mtpjax.decode.tree import Tree
from mtpjax.heads import MultiTokenModel
from mtpjax.model import KeyValues, Placement, cache, masks

# Rows of a prompt that run at a time: enough that products are as fast as they
# get, few enough that what they leave in memory is little.
CHUNK = 256


class _Run(NamedTuple):
  """What running prompts leaves.

  Attributes:
    cache: of all layers, the prompts in it.
    tap_BTD: tapped states; beyond a prompt anything.
    last_B1D: hidden state of each prompt's last row.
  """

  cache: tuple[KeyValues, ...]
  tap_BTD: jax.Array
  last_B1D: jax.Array


def _row(x_BTD: jax.Array, at_B: jax.Array) -> jax.Array:
  return jnp.take_along_axis(x_BTD, at_B[:, None, None], axis=1, mode="clip")


def _in_chunks(
  model: MultiTokenModel, params: Any, prompt_BT: jax.Array, state: DecodeState
) -> _Run:
  """Runs long prompts chunk by chunk against the cache, as far as they reach.

  One program for prompts of any length up to T, whose cost and memory are those
  of the chunks in use. Rows of a shorter prompt beside a longer one leave keys
  and values that are never read, since they lie beyond its length.
  """
  b, n = prompt_BT.shape
  causal_CC = jnp.tril(jnp.ones((CHUNK, CHUNK), bool))

  def chunk(i: jax.Array, run: _Run) -> _Run:
    start = i * CHUNK
    placement = Placement(
      jnp.broadcast_to(start + jnp.arange(CHUNK), (b, CHUNK)),
      masks.Tree(causal_CC, jnp.full(b, start)),
    )
    out = model.apply_trunk(
      params["lm"],
      jax.lax.dynamic_slice_in_dim(prompt_BT, start, CHUNK, axis=1),
      placement,
      run.cache,
    )
    # No state is infinite.
    is_never = out.hidden_BTD[0, -1, 0] == jnp.inf
    place = cache.after_reads(start, is_never)
    at_B = state.prompt_length_B - 1 - start
    is_here_B11 = ((at_B >= 0) & (at_B < CHUNK))[:, None, None]
    return _Run(
      tuple(
        cache.fill(c, rows, place)
        for c, rows in zip(run.cache, out.rows, strict=True)
      ),
      jax.lax.dynamic_update_slice_in_dim(
        run.tap_BTD, out.tap_BTD, start, axis=1
      ),
      jnp.where(is_here_B11, _row(out.hidden_BTD, at_B), run.last_B1D),
    )

  width, dtype = model.config.d_model, model.config.dtype
  return jax.lax.fori_loop(
    0,
    -(-jnp.max(state.prompt_length_B) // CHUNK),
    chunk,
    _Run(
      state.cache,
      jnp.zeros((b, n, width), dtype),
      jnp.zeros((b, 1, width), dtype),
    ),
  )


def prefill(
  spec: Spec,
  params: Any,
  tables: Tables,
  prompt_BT: jax.Array,
  state: DecodeState,
) -> DecodeState:
  """Runs the prompts and commits their first token.

  Args:
    spec: the program.
    params: from `decode_params`.
    tables: EOS ids and grammars.
    prompt_BT: prompts, padded on the right with any ids.
    state: a state whose texts are the prompts, at least one token each, and
      whose root is their last token.

  Returns:
    The state after the first token.
  """
  model, n = spec.model, prompt_BT.shape[1]
  positions_BT = jnp.broadcast_to(jnp.arange(n), prompt_BT.shape)
  is_prompt_BT = positions_BT < state.prompt_length_B[:, None]
  placement = Placement.packed(positions_BT, is_prompt_BT.astype(jnp.int32))
  if n > CHUNK and model.foreign_trunk is None:
    run = _in_chunks(model, params, prompt_BT, state)
  else:
    out = model.apply_trunk(params["lm"], prompt_BT, placement)
    run = _Run(
      tuple(map(cache.fill, state.cache, out.rows)),
      out.tap_BTD,
      _row(out.hidden_BTD, state.prompt_length_B - 1),
    )
  logits_B1V = model.trunk.logits(params["lm"], run.last_B1D)
  state = state.replace(cache=run.cache)
  root = Tree.root()
  noise_B1V = None
  if spec.stages.is_sampled:
    noise_B1V = noise.position_noise(
      state.controls.keys_B, state.length_B[:, None] + 1, logits_B1V.shape[-1]
    )
  final_B1V = final_at_nodes(
    spec, tables, state, root, state.root_B[:, None], logits_B1V
  )
  tokens_B1 = jnp.argmax(choose(state.controls, final_B1V, noise_B1V), axis=-1)
  state = advance(
    tables,
    state,
    tokens_B1,
    token_logprobs(logits_B1V, tokens_B1),
    jnp.ones_like(state.length_B),
    jnp.zeros_like(tokens_B1),
    jnp.zeros_like(state.length_B),
  )
  prompts = Prompts(
    run.tap_BTD, placement, state.tokens_BS, state.prompt_length_B,
    state.length_B,
  )  # fmt: skip
  return state.replace(
    draft=spec.drafter.prefill(model, params, state.draft, prompts)
  )
