"""A linear map over any number of axes."""

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from mtpjax import parallel

_TRANSPOSED = "transposed"
# Linear maps with more than one input axis, by name.
_INPUT_AXES = {"out": 2}


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
    dtype = jnp.dtype(self.dtype)
    if self.has_variable("params", _TRANSPOSED):
      # As a matrix: kernels of more axes XLA would copy at each pass.
      matrix: Any = self.get_variable("params", _TRANSPOSED).reshape(
        -1, math.prod(in_shape)
      )
      rows = x.astype(dtype).reshape(*x.shape[:-n_in], -1)
      y = jnp.tensordot(rows, matrix.astype(dtype), axes=(-1, -1))
      y = y.reshape(*x.shape[:-n_in], *self.out_shape)
    else:
      kernel: Any = self.param(
        "kernel",
        parallel.logical(
          _identity if self.is_identity else self._random(n_in),
          *self.in_names,
          *self.out_names,
        ),
        (*in_shape, *self.out_shape),
        jnp.dtype(self.param_dtype),
      )
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


def transpose_kernels(params: Any, name: str = "") -> Any:
  """Returns parameters whose kernels are stored [out..., in...], for decoding.

  XLA's CPU products of one row, and of 4 to 16, read weights faster in this
  order; on accelerators it makes no difference.

  Args:
    params: a tree of dicts and tuples, layers not stacked.
    name: that of the tree within its parent.

  Returns:
    The tree, with `transposed` in place of `kernel`; `Linear` takes either.
  """
  if isinstance(params, tuple):
    return tuple(transpose_kernels(part, name) for part in params)
  if not isinstance(params, dict):
    return params
  out = {k: transpose_kernels(v, k) for k, v in params.items()}
  if "kernel" in out:
    n_in = _INPUT_AXES.get(name, 1)
    kernel = out.pop("kernel")
    out[_TRANSPOSED] = jnp.moveaxis(
      kernel, range(n_in), range(kernel.ndim - n_in, kernel.ndim)
    )
  return out


def _identity(key, shape, dtype):
  del key
  n, _ = shape
  return jnp.eye(n, dtype=dtype)
