"""A residual MLP as a head (Cai et al. 2024, section 2.1.1)."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from mtpjax import config as config_lib
from mtpjax import parallel
from mtpjax.heads.context import HeadContext
from mtpjax.model import linear


class MedusaHead(nn.Module):
  """h + silu(W h + b), with W and b zero at the start (the identity)."""

  config: config_lib.Model
  keeps_cache = False

  @nn.compact
  def __call__(self, hidden_BTD: jax.Array, context: HeadContext) -> jax.Array:
    """Maps tapped hidden states [B, T, D] to those the norm follows."""
    del context
    c = self.config
    y_BTD = linear.Linear(
      (c.d_model,),
      ("embed",),
      ("embed_out",),
      c.dtype,
      c.param_dtype,
      scale=0.0,
      name="map",
    )(hidden_BTD)
    bias_D = self.param(
      "bias",
      parallel.logical(nn.initializers.zeros, "norm"),
      (c.d_model,),
      jnp.dtype(c.param_dtype),
    )
    return hidden_BTD + nn.silu(y_BTD + bias_D.astype(y_BTD.dtype))
