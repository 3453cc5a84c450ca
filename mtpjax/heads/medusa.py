"""A residual MLP as a head (Cai et al. 2024, section 2.1.1)."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from mtpjax import config as config_lib
from mtpjax import parallel
from mtpjax.heads.context import HeadContext
from mtpjax.heads.wiring import PARALLEL
from mtpjax.model import linear


class MedusaHead(nn.Module):
  """h + silu(W h + b), with W and b zero at the start (the identity).

  `heads.n_layers` such layers follow each other. A head with an unembedding of
  its own holds it among its parameters; whoever applies the head applies it.
  """

  config: config_lib.Model
  heads: config_lib.Heads
  keeps_cache = False
  wiring = PARALLEL
  n_attention_layers = 0
  options = ("n_layers", "unembedding")
  published = "medusa"

  @nn.compact
  def __call__(self, hidden_BTD: jax.Array, context: HeadContext) -> jax.Array:
    """Maps tapped hidden states [B, T, D] to those the norm follows."""
    del context
    for n in range(1, self.heads.n_layers + 1):
      hidden_BTD = self._layer(hidden_BTD, "" if n == 1 else f"_{n}")
    if self.is_initializing() and self.heads.unembedding == "copied":
      c = self.config
      self.param(
        "unembedding",
        parallel.logical(nn.initializers.zeros, "embed", "vocab"),
        (c.d_model, c.vocab_size),
        jnp.dtype(c.param_dtype),
      )
    return hidden_BTD

  def _layer(self, hidden_BTD: jax.Array, suffix: str) -> jax.Array:
    c = self.config
    y_BTD = linear.Linear(
      (c.d_model,),
      ("embed",),
      ("embed_out",),
      c.dtype,
      c.param_dtype,
      scale=0.0,
      name="map" + suffix,
    )(hidden_BTD)
    bias_D = self.param(
      "bias" + suffix,
      parallel.logical(nn.initializers.zeros, "norm"),
      (c.d_model,),
      jnp.dtype(c.param_dtype),
    )
    return hidden_BTD + nn.silu(y_BTD + bias_D.astype(y_BTD.dtype))
