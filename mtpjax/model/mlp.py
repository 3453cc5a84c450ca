"""The gated MLP (SwiGLU; Shazeer 2020)."""

import flax.linen as nn
import jax

from mtpjax import config as config_lib
from mtpjax.model import linear


class GatedMLP(nn.Module):
  """down(silu(gate(x)) * up(x))."""

  config: config_lib.Model

  @nn.compact
  def __call__(self, x_BTD: jax.Array) -> jax.Array:
    """Maps [B, T, D] to [B, T, D]."""
    c = self.config

    def widen(name: str) -> jax.Array:
      return linear.Linear(
        (c.d_ff,), ("embed",), ("mlp",), c.dtype, c.param_dtype, name=name
      )(x_BTD)

    hidden_BTF = nn.silu(widen("gate")) * widen("up")
    return linear.Linear(
      (c.d_model,),
      ("mlp",),
      ("embed",),
      c.dtype,
      c.param_dtype,
      scale=(2 * c.n_layers) ** -0.5,
      name="down",
    )(hidden_BTF)
