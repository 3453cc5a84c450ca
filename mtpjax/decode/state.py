"""Everything a decode step reads and replaces: fixed-shape buffers.

Axes: B requests, S positions of a text (prompt and generated), D width, V
vocabulary, J tokens of a block.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from mtpjax.decode.controls import Controls
from mtpjax.heads import MultiTokenModel
from mtpjax.model import (
  KeyValues,
  transpose_kernels,
  transpose_unembedding,
  unstack_layers,
)


class DecodeState(struct.PyTreeNode):
  """Where a batch of requests is; every array has a row per request.

  Attributes:
    tokens_BS: prompt and generated tokens at their positions; what lies beyond
      the root means nothing.
    logprobs_BS: log-probabilities of generated tokens under the model
      (temperature 1, before penalties and masks).
    passes_BS: passes of the request when a token was committed.
    proposed_BS: drafts verified when a token was committed.
    origins_BS: node that proposed a token; 0 for the one each pass adds.
    prompt_length_B: tokens of the prompt.
    length_B: rows in the cache, which is also the position of the root: the
      last committed token, whose keys and values are not cached yet.
    finish_B: RUNNING or why the text ended.
    n_passes_B: trunk passes that committed something, prefill included.
    n_proposed_B: drafts verified.
    cache: keys and values of the trunk, one [B, K, S, H] pair per layer.
    draft: what the drafter keeps, its own business; see `drafters.Drafter`.
    controls: what each request asks for.
    counts_BV: how often the text has each token; None without penalties.
    seen_BV: tokens the prompt has; None without penalties.
    grammar_B: state of each grammar after the root.
  """

  tokens_BS: jax.Array
  logprobs_BS: jax.Array
  passes_BS: jax.Array
  proposed_BS: jax.Array
  origins_BS: jax.Array
  prompt_length_B: jax.Array
  length_B: jax.Array
  finish_B: jax.Array
  n_passes_B: jax.Array
  n_proposed_B: jax.Array
  cache: tuple[KeyValues, ...]
  draft: Any
  controls: Controls
  counts_BV: jax.Array | None
  seen_BV: jax.Array | None
  grammar_B: jax.Array

  @property
  def n_tokens_B(self) -> jax.Array:
    """Generated tokens."""
    return self.length_B + 1 - self.prompt_length_B

  @property
  def root_B(self) -> jax.Array:
    """The last committed token."""
    return jnp.take_along_axis(self.tokens_BS, self.length_B[:, None], axis=1)[
      :, 0
    ]


def decode_params(model: MultiTokenModel, params: Any) -> Any:
  """Turns trained parameters into those of decoding, once, at load.

  Args:
    model: the model.
    params: {"lm": ..., "heads": ...}, stacked, in their stored dtype.

  Returns:
    The same and any other parts, layers and heads as tuples, kernels [out, in],
    in the dtype of the model's products (norm scales too: they multiply in
    float32 anyhow).
  """

  def unstack(params):
    lm = model.trunk.for_decoding(params["lm"])
    heads = unstack_layers(params["heads"]) if "heads" in params else ()
    heads = tuple(map(transpose_unembedding, transpose_kernels(heads)))
    return jax.tree.map(
      lambda leaf: leaf.astype(model.config.dtype),
      params | {"lm": lm, "heads": heads},
    )

  return jax.jit(unstack)(params)


def write_block(
  buffer_BS: jax.Array, block_BJ: jax.Array, start_B: jax.Array
) -> jax.Array:
  """Writes a block into each row at its own place; S has room for J more."""
  block_BJ = block_BJ.astype(buffer_BS.dtype)
  # One slice per row: as a batched update this is a scatter, which XLA runs
  # element by element on a CPU.
  for b in range(buffer_BS.shape[0]):
    buffer_BS = jax.lax.dynamic_update_slice(
      buffer_BS, block_BJ[b : b + 1], (b, start_B[b])
    )
  return buffer_BS


def token_logprobs(logits_BJV: jax.Array, tokens_BJ: jax.Array) -> jax.Array:
  """Returns log p(token) [B, J]."""
  picked = jnp.take_along_axis(logits_BJV, tokens_BJ[..., None], axis=-1)
  return picked.squeeze(-1) - jax.nn.logsumexp(logits_BJV, axis=-1)
