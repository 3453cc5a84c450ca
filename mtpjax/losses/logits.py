"""Logits of states, their normaliser and their arg max.

Written so that they stay local where the vocabulary is sharded: sums, maxima
and comparisons with an iota, no gathers.
"""

import jax
import jax.numpy as jnp


def sharded_logits(
  hidden_GCD: jax.Array, unembedding_GDV: jax.Array
) -> jax.Array:
  """Returns logits [G, C, V], in at least float32."""
  return jnp.einsum(
    "gcd,gdv->gcv",
    hidden_GCD,
    unembedding_GDV.astype(hidden_GCD.dtype),
    preferred_element_type=jnp.promote_types(hidden_GCD.dtype, jnp.float32),
  )


def log_normalizer(logits_XV: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Returns the log of the sum of exponentials, and the largest logit."""
  max_X = jnp.max(logits_XV, axis=-1)
  shifted_XV = jnp.exp(logits_XV - max_X[..., None])
  return max_X + jnp.log(jnp.sum(shifted_XV, axis=-1)), max_X


def best_ids(logits_XV: jax.Array, max_X: jax.Array) -> jax.Array:
  """Returns the first id whose logit is the largest one."""
  iota_V = jnp.arange(logits_XV.shape[-1])
  is_max_XV = logits_XV == max_X[..., None]
  return jnp.min(jnp.where(is_max_XV, iota_V, iota_V.size), axis=-1)
