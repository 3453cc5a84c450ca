"""The first pass: prompts are run, and their first token is committed."""

from typing import Any

import jax
import jax.numpy as jnp

from mtpjax.decode import noise
from mtpjax.decode.advance import advance, final_at_nodes
from mtpjax.decode.drafters import Prompts
from mtpjax.decode.sampling import Tables, choose
from mtpjax.decode.spec import Spec
from mtpjax.decode.state import DecodeState, token_logprobs
from mtpjax.decode.tree import Tree
from mtpjax.model import Placement, cache


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
  out = model.apply_trunk(params["lm"], prompt_BT, placement)
  last_B11 = (state.prompt_length_B - 1)[:, None, None]
  hidden_B1D = jnp.take_along_axis(out.hidden_BTD, last_B11, axis=1)
  logits_B1V = model.trunk.logits(params["lm"], hidden_B1D)
  state = state.replace(cache=tuple(map(cache.fill, state.cache, out.rows)))
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
    out.tap_BTD, placement, state.tokens_BS, state.prompt_length_B,
    state.length_B,
  )  # fmt: skip
  return state.replace(
    draft=spec.drafter.prefill(model, params, state.draft, prompts)
  )
