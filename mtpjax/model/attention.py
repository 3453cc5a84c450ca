"""Grouped-query attention (Ainslie et al. 2023) with rotary positions.

Axes: B batch, T query positions, S cache rows, D width, N query attention
heads, K key/value heads, G = N / K, H head width.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct

from mtpjax import config as config_lib
from mtpjax.model import linear, norm, rope
from mtpjax.model.placement import Placement


class KeyValues(struct.PyTreeNode):
  """Keys and values of rows, [B, K, rows, H] each; a cache or new rows."""

  keys_BKSH: jax.Array
  values_BKSH: jax.Array


def attend(
  q_BTNH: jax.Array,
  new: KeyValues,
  placement: Placement,
  cache: KeyValues | None,
  implementation: Any,
  window: int = 0,
) -> jax.Array:
  """Attends to the cache and the new rows; chooses the implementation.

  Args:
    q_BTNH: rotated queries.
    new: rotated keys and the values of this pass, T rows.
    placement: of the T rows.
    cache: keys and values of earlier passes, only read; None without.
    implementation: "xla" or "cudnn", for passes without a cache.
    window: positions a query looks back on; 0 is all.

  Returns:
    [B, T, N, H] in the dtype of the queries; the softmax is at least float32.
  """
  capacity = 0 if cache is None else cache.keys_BKSH.shape[2]
  allowed_B1TS = placement.allowed(capacity, window)
  if cache is not None:
    return _attend_cached(q_BTNH, new, allowed_B1TS, cache)
  return jax.nn.dot_product_attention(
    q_BTNH,
    new.keys_BKSH.swapaxes(1, 2),
    new.values_BKSH.swapaxes(1, 2),
    mask=allowed_B1TS,
    implementation=implementation,
  )


def _attend_cached(
  q_BTNH: jax.Array, new: KeyValues, allowed_B1TS: jax.Array, cache: KeyValues
) -> jax.Array:
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


class Attention(nn.Module):
  """Projections around `attend`."""

  config: config_lib.Model

  def setup(self):
    """Creates the parts."""
    c = self.config

    def project(n: int, name: str) -> linear.Linear:
      return linear.Linear(
        (n, c.d_head), ("embed",), (name, "d_head"), c.dtype, c.param_dtype,
        has_bias=c.qkv_bias,
      )  # fmt: skip

    self.query = project(c.n_attention_heads, "attention_heads")
    self.key = project(c.n_kv_heads, "kv_heads")
    self.value = project(c.n_kv_heads, "kv_heads")
    if c.qk_norm:
      self.query_norm = norm.RMSNorm(c.norm_eps, c.param_dtype)
      self.key_norm = norm.RMSNorm(c.norm_eps, c.param_dtype)
    self.out = linear.Linear(
      (c.d_model,),
      ("attention_heads", "d_head"),
      ("embed",),
      c.dtype,
      c.param_dtype,
      scale=(2 * c.n_layers) ** -0.5,
    )

  def rows(self, x_BTD: jax.Array, positions_BT: jax.Array) -> KeyValues:
    """Returns the keys (rotated) and values of these hidden states."""
    keys_BTKH = self.key(x_BTD)
    if self.config.qk_norm:
      keys_BTKH = self.key_norm(keys_BTKH)
    keys_BTKH = self._rotate(keys_BTKH, positions_BT)
    return KeyValues(keys_BTKH.swapaxes(1, 2), self.value(x_BTD).swapaxes(1, 2))

  def _rotate(self, x_BTNH: jax.Array, positions_BT: jax.Array) -> jax.Array:
    return rope.rotate(x_BTNH, positions_BT, rope.frequencies(self.config))

  def __call__(
    self,
    x_BTD: jax.Array,
    placement: Placement,
    cache: KeyValues | None = None,
  ) -> tuple[jax.Array, KeyValues]:
    """Returns the attention output [B, T, D] and this pass's rows."""
    q_BTNH = self.query(x_BTD)
    if self.config.qk_norm:
      q_BTNH = self.query_norm(q_BTNH)
    q_BTNH = self._rotate(q_BTNH, placement.positions_BT)
    new = self.rows(x_BTD, placement.positions_BT)
    y_BTNH = attend(
      q_BTNH, new, placement, cache,
      self.config.attention, self.config.sliding_window,
    )  # fmt: skip
    return self.out(y_BTNH), new
