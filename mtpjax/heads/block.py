"""A transformer layer as a head (Gloeckle et al. 2024, section 2)."""

import flax.linen as nn
import jax

from mtpjax import config as config_lib
from mtpjax.heads.context import HeadContext
from mtpjax.heads.wiring import PARALLEL
from mtpjax.model import KeyValues, block


class BlockHead(nn.Module):
  """Parallel wiring: every head is one layer on the same tapped states."""

  config: config_lib.Model
  heads: config_lib.Heads
  keeps_cache = True
  wiring = PARALLEL
  n_attention_layers = 1

  def setup(self):
    """Creates the parts."""
    self.layer = block.Block(self.config)

  def __call__(self, hidden_BTD: jax.Array, context: HeadContext) -> jax.Array:
    """Maps tapped hidden states [B, T, D] to those the norm follows."""
    out_BTD, _ = self.layer(hidden_BTD, context.placement, context.cache)
    return out_BTD

  def rows(self, hidden_BTD: jax.Array, positions_BT: jax.Array) -> KeyValues:
    """Returns the keys and values these tapped states leave in the cache."""
    return self.layer.rows(hidden_BTD, positions_BT)
