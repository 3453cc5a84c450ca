"""Grouped-query attention (Ainslie et al. 2023) with rotary positions.

Axes: B batch, T query positions, S cache rows, D width, N query attention
heads, K key/value heads, G = N / K, H head width.
"""

import flax.linen as nn
import jax

from mtpjax import config as config_lib
from mtpjax.model import linear, norm, rope
from mtpjax.model.attention.choose import attend
from mtpjax.model.attention.key_values import KeyValues
from mtpjax.model.placement import Placement


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
