"""One transformer layer: attention and MLP, each after a norm."""

import flax.linen as nn
import jax

from mtpjax import config as config_lib
from mtpjax.model import attention, mlp, norm
from mtpjax.model.placement import Placement


class Block(nn.Module):
  """x + attention(norm(x)), then + mlp(norm(...))."""

  config: config_lib.Model

  def setup(self):
    """Creates the parts."""
    c = self.config
    self.attention_norm = norm.RMSNorm(c.norm_eps, c.param_dtype)
    self.attention = attention.Attention(c)
    self.mlp_norm = norm.RMSNorm(c.norm_eps, c.param_dtype)
    self.mlp = mlp.GatedMLP(c)

  def rows(
    self, x_BTD: jax.Array, positions_BT: jax.Array
  ) -> attention.KeyValues:
    """Returns only the keys and values these hidden states would leave."""
    return self.attention.rows(self.attention_norm(x_BTD), positions_BT)

  def __call__(
    self,
    x_BTD: jax.Array,
    placement: Placement,
    cache: attention.KeyValues | None = None,
  ) -> tuple[jax.Array, attention.KeyValues]:
    """Runs the layer.

    Args:
      x_BTD: hidden states.
      placement: of the rows.
      cache: keys and values of earlier passes, only read.

    Returns:
      The new hidden states [B, T, D], and the keys and values of this pass.
    """
    y_BTD, new = self.attention(self.attention_norm(x_BTD), placement, cache)
    x_BTD = x_BTD + y_BTD
    return x_BTD + self.mlp(self.mlp_norm(x_BTD)), new
