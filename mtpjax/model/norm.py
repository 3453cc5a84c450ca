"""Root-mean-square normalisation."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from mtpjax import parallel


def rms_norm(scale_D: jax.Array, x: jax.Array, epsilon: float) -> jax.Array:
  """Divides by the root mean square and scales (Zhang & Sennrich 2019, eq. 4).

  Args:
    scale_D: the learned scale [D].
    x: [..., D].
    epsilon: added to the mean square.

  Returns:
    [..., D] in the dtype of `x`; computed in at least float32.
  """
  wide = jnp.promote_types(x.dtype, jnp.float32)
  x_wide = x.astype(wide)
  mean_square = jnp.mean(jnp.square(x_wide), axis=-1, keepdims=True)
  y = x_wide * jax.lax.rsqrt(mean_square + epsilon)
  return (y * scale_D.astype(wide)).astype(x.dtype)


class RMSNorm(nn.Module):
  """`rms_norm` with its scale as a parameter."""

  epsilon: float
  param_dtype: str

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Normalises the last axis of `x`."""
    scale_D = self.param(
      "scale",
      parallel.logical(nn.initializers.ones, "norm"),
      (x.shape[-1],),
      jnp.dtype(self.param_dtype),
    )
    return rms_norm(scale_D, x, self.epsilon)
