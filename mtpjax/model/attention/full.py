"""Attention that writes all its scores out: right for few rows, and an oracle.

Axes: B batch, T query positions, S cache rows, N query attention heads, K
key/value heads, G = N / K, H head width, X = G x T rows of one product.
"""

from typing import Any

import jax
import jax.numpy as jnp

from mtpjax.model.attention.key_values import KeyValues


def attend(
  q_BTNH: jax.Array,
  new: KeyValues,
  allowed_B1TS: jax.Array,
  implementation: Any,
) -> jax.Array:
  """Attends to new rows alone; see `choose.attend`.

  Args:
    q_BTNH: rotated queries.
    new: rotated keys, and values.
    allowed_B1TS: may the query read the key?
    implementation: "xla" or "cudnn".
  """
  return jax.nn.dot_product_attention(
    q_BTNH,
    new.keys_BKSH.swapaxes(1, 2),
    new.values_BKSH.swapaxes(1, 2),
    mask=allowed_B1TS,
    implementation=implementation,
  )


def attend_cached(
  q_BTNH: jax.Array, new: KeyValues, allowed_B1TS: jax.Array, cache: KeyValues
) -> jax.Array:
  """Attends to a cache and to new rows; see `choose.attend`."""
  # The cache is read where it lies: the scores of cached and new rows are
  # joined, never their keys (joining those would copy the cache each pass).
  # Query heads of a group and nodes are folded into the rows X of one product
  # per key/value head, the shape XLA's CPU products are quickest at.
  b, t, n, h = q_BTNH.shape
  k, s = cache.keys_BKSH.shape[1:3]
  g = n // k
  wide = jnp.promote_types(q_BTNH.dtype, jnp.float32)

  def product(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.matmul(a, b, preferred_element_type=wide)

  q_BKXH = jnp.moveaxis(q_BTNH.reshape(b, t, k, g, h), 1, 3).reshape(
    b, k, g * t, h
  )
  scores_BKXS = jnp.concatenate(
    [
      product(q_BKXH, cache.keys_BKSH.swapaxes(2, 3)),
      product(q_BKXH, new.keys_BKSH.swapaxes(2, 3)),
    ],
    axis=-1,
  ) * (h**-0.5)
  allowed_B1XS = jnp.tile(allowed_B1TS, (1, 1, g, 1))
  scores_BKXS = jnp.where(allowed_B1XS, scores_BKXS, jnp.finfo(wide).min)
  probs_BKXS = jax.nn.softmax(scores_BKXS, axis=-1).astype(q_BTNH.dtype)
  out_BKXH = product(probs_BKXS[..., :s], cache.values_BKSH)
  out_BKXH += product(probs_BKXS[..., s:], new.values_BKSH)
  out_BTKGH = jnp.moveaxis(out_BKXH.reshape(b, k, g, t, h), 3, 1)
  return out_BTKGH.reshape(b, t, n, h).astype(q_BTNH.dtype)
