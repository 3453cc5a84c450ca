"""A linear map over any number of axes."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from mtpjax import parallel


class Linear(nn.Module):
  """Contracts the last axes of the input with a kernel [in..., out...].

  Attributes:
    out_shape: sizes of the output axes.
    in_names: logical names of the contracted axes, one per axis.
    out_names: logical names of the output axes.
    dtype: dtype of the product.
    param_dtype: dtype of the kernel.
    scale: multiplies the initial standard deviation 1/sqrt(fan in).
  """

  out_shape: tuple[int, ...]
  in_names: tuple[str, ...]
  out_names: tuple[str, ...]
  dtype: str
  param_dtype: str
  scale: float = 1.0

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Maps [..., in...] to [..., out...]."""
    n_in = len(self.in_names)
    in_shape = x.shape[-n_in:]
    kernel = self.param(
      "kernel",
      parallel.logical(
        nn.initializers.variance_scaling(
          self.scale**2,
          "fan_in",
          "normal",
          in_axis=tuple(range(n_in)),
          out_axis=tuple(range(n_in, n_in + len(self.out_shape))),
        ),
        *self.in_names,
        *self.out_names,
      ),
      (*in_shape, *self.out_shape),
      jnp.dtype(self.param_dtype),
    )
    dtype = jnp.dtype(self.dtype)
    return jnp.tensordot(x.astype(dtype), kernel.astype(dtype), axes=n_in)
