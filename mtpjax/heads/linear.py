"""One matrix as a head (Gloeckle et al. 2024, appendix B)."""

import flax.linen as nn
import jax

from mtpjax import config as config_lib
from mtpjax.heads.context import HeadContext
from mtpjax.heads.wiring import PARALLEL
from mtpjax.model import linear


class LinearHead(nn.Module):
  """A single linear map without nonlinearity.

  After the last layer, where the model's own next-token output is read, it
  begins as the identity: it predicts what the model does.
  """

  config: config_lib.Model
  heads: config_lib.Heads
  keeps_cache = False
  wiring = PARALLEL
  n_attention_layers = 0

  @nn.compact
  def __call__(self, hidden_BTD: jax.Array, context: HeadContext) -> jax.Array:
    """Maps tapped hidden states [B, T, D] to those the norm follows."""
    del context
    c = self.config
    return linear.Linear(
      (c.d_model,),
      ("embed",),
      ("embed_out",),
      c.dtype,
      c.param_dtype,
      is_identity=not self.heads.tapped.is_inside,
      name="map",
    )(hidden_BTD)
