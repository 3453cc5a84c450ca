"""Reads the norm of a gradient on its way back, without changing it."""

import jax
import jax.numpy as jnp


@jax.custom_vjp
def gradient_probe(x: jax.Array, dummy: jax.Array) -> jax.Array:
  """Returns `x`; the gradient of `dummy` is the squared norm of that of `x`.

  Args:
    x: any array.
    dummy: a float scalar; its value does not matter.

  Returns:
    `x`, unchanged.
  """
  del dummy
  return x


def _forward(x, dummy):
  return x, dummy


def _backward(dummy, cotangent):
  wide = jnp.promote_types(cotangent.dtype, dummy.dtype)
  squared = jnp.sum(jnp.square(cotangent.astype(wide)))
  return cotangent, squared.astype(dummy.dtype)


gradient_probe.defvjp(_forward, _backward)
