"""Rotary position embedding (Su et al. 2021), in the half-rotation layout."""

import jax
import jax.numpy as jnp


def rotate(
  x_BTNH: jax.Array, positions_BT: jax.Array, theta: float
) -> jax.Array:
  """Turns pairs (i, i + H/2) of every head by position-dependent angles.

  Args:
    x_BTNH: queries or keys; H is even.
    positions_BT: positions within the document, int32.
    theta: base of the frequencies.

  Returns:
    The rotated array, same shape and dtype; angles are at least float32.
  """
  half = x_BTNH.shape[-1] // 2
  wide = jnp.promote_types(x_BTNH.dtype, jnp.float32)
  frequencies = theta ** (-jnp.arange(half, dtype=wide) / half)
  angles_BT1F = positions_BT[:, :, None, None].astype(wide) * frequencies
  cos, sin = jnp.cos(angles_BT1F), jnp.sin(angles_BT1F)
  a, b = jnp.split(x_BTNH.astype(wide), 2, axis=-1)
  turned = jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
  return turned.astype(x_BTNH.dtype)
