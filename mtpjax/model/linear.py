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
    has_bias: adds a bias [out...], zero at the start.
    is_identity: begins as the identity of a square matrix.
  """

  out_shape: tuple[int, ...]
  in_names: tuple[str, ...]
  out_names: tuple[str, ...]
  dtype: str
  param_dtype: str
  scale: float = 1.0
  has_bias: bool = False
  is_identity: bool = False

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Maps [..., in...] to [..., out...]."""
    n_in = len(self.in_names)
    in_shape = x.shape[-n_in:]
    kernel = self.param(
      "kernel",
      parallel.logical(
        _identity if self.is_identity else self._random(n_in),
        *self.in_names,
        *self.out_names,
      ),
      (*in_shape, *self.out_shape),
      jnp.dtype(self.param_dtype),
    )
    dtype = jnp.dtype(self.dtype)
    y = jnp.tensordot(x.astype(dtype), kernel.astype(dtype), axes=n_in)
    if not self.has_bias:
      return y
    bias = self.param(
      "bias",
      parallel.logical(nn.initializers.zeros, *self.out_names),
      self.out_shape,
      jnp.dtype(self.param_dtype),
    )
    return y + bias.astype(dtype)

  def _random(self, n_in: int):
    return nn.initializers.variance_scaling(
      self.scale**2,
      "fan_in",
      "normal",
      in_axis=tuple(range(n_in)),
      out_axis=tuple(range(n_in, n_in + len(self.out_shape))),
    )


def _identity(key, shape, dtype):
  del key
  n, _ = shape
  return jnp.eye(n, dtype=dtype)
