"""Everything a decode step reads and replaces: fixed-shape buffers.

Axes: B requests, T generated tokens, S cache rows, M drafted offsets (depths of
the tree), C candidates per offset, J nodes of a path, E EOS ids.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from mtpjax.decode.drafters.heads import HeadCaches
from mtpjax.decode.tree import Tree
from mtpjax.errors import UserError
from mtpjax.heads import MultiTokenModel
from mtpjax.model import KeyValues, unstack_layers


@dataclasses.dataclass(frozen=True)
class Spec:
  """What a compiled decode program depends on, besides array shapes.

  Attributes:
    model: the model.
    tree: the drafts of every pass.
    is_sampled: some request has a temperature above 0.
  """

  model: MultiTokenModel
  tree: Tree
  is_sampled: bool

  def __post_init__(self):
    longest = self.model.heads.chain_length
    if self.tree.max_depth > longest:
      raise UserError(
        f"tree: {self.tree.max_depth} drafts deep, but the heads of offsets "
        f"{self.model.heads.offsets} reach only {longest}; use a shorter one, "
        "or --mode next"
      )
    if self.tree.width > self.model.config.vocab_size:
      raise UserError(
        f"tree: rank {self.tree.width - 1} is beyond the vocabulary of "
        f"{self.model.config.vocab_size}"
      )


class DecodeState(struct.PyTreeNode):
  """Where a batch of requests is.

  Attributes:
    root_B: the last committed token; its keys and values are not cached yet.
    candidates_BMC: proposed tokens of each depth, likeliest first.
    cache: keys and values of the trunk, one [B, K, S, H] pair per layer.
    head_caches: those of the drafting heads.
    length_B: rows in the cache, which is also the position of the root.
    tokens_BT: generated tokens; what lies beyond n_tokens_B means nothing.
    logprobs_BT: their log-probabilities under the model (temperature 1).
    n_tokens_B: committed tokens.
    budget_B: tokens that may still be committed.
    finish_B: RUNNING, EOS or LENGTH.
    passes_B: trunk passes that committed something, prefill included.
    keys_B: PRNG key of each request.
    temperature_B: 0 is greedy.
    eos_ids_E: ids that end a text; -1 matches nothing.
  """

  root_B: jax.Array
  candidates_BMC: jax.Array
  cache: tuple[KeyValues, ...]
  head_caches: HeadCaches
  length_B: jax.Array
  tokens_BT: jax.Array
  logprobs_BT: jax.Array
  n_tokens_B: jax.Array
  budget_B: jax.Array
  finish_B: jax.Array
  passes_B: jax.Array
  keys_B: jax.Array
  temperature_B: jax.Array
  eos_ids_E: jax.Array


def decode_params(model: MultiTokenModel, params: Any) -> Any:
  """Turns trained parameters into those of decoding, once, at load.

  Args:
    model: the model.
    params: {"lm": ..., "heads": ...}, stacked, in their stored dtype.

  Returns:
    The same with layers and heads as tuples, in the dtype of the model's
    products (norm scales included: they multiply in float32 anyhow).
  """

  def unstack(params):
    lm = params["lm"] | {"layers": unstack_layers(params["lm"]["layers"])}
    heads = unstack_layers(params["heads"]) if "heads" in params else ()
    return jax.tree.map(
      lambda leaf: leaf.astype(model.config.dtype), {"lm": lm, "heads": heads}
    )

  return jax.jit(unstack)(params)


def write_block(
  buffer_BT: jax.Array, block_BJ: jax.Array, start_B: jax.Array
) -> jax.Array:
  """Writes a block into each row at its own place; T has room for J more."""
  return jax.vmap(
    lambda row, block, start: jax.lax.dynamic_update_slice(row, block, (start,))
  )(buffer_BT, block_BJ.astype(buffer_BT.dtype), start_B)


def token_logprobs(logits_BJV: jax.Array, tokens_BJ: jax.Array) -> jax.Array:
  """Returns log p(token) [B, J]."""
  picked = jnp.take_along_axis(logits_BJV, tokens_BJ[..., None], axis=-1)
  return picked.squeeze(-1) - jax.nn.logsumexp(logits_BJV, axis=-1)
