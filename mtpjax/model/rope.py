"""Rotary position embedding (Su et al. 2021), in the half-rotation layout."""

import jax
import jax.numpy as jnp
import numpy as np

from mtpjax import config as config_lib


def frequencies(config: config_lib.Model) -> np.ndarray:
  """Returns the angle per position of each pair, float64 [H / 2].

  theta^(-i / (H / 2)), stretched as the configuration says: `linear` divides
  all by `rope_factor` (Chen et al. 2023). `llama3` (Dubey et al. 2024, section
  3.2, and the code published with it) divides those by it that turn fewer than
  `rope_low_freq_factor` times within `rope_original_length` positions, leaves
  those alone that turn more than `rope_high_freq_factor` times, and
  interpolates in between.
  """
  half = config.d_head // 2
  plain_F = config.rope_theta ** (-np.arange(half) / half)
  if config.rope_scaling == "none":
    return plain_F
  stretched_F = plain_F / config.rope_factor
  if config.rope_scaling == "linear":
    return stretched_F
  low, high = config.rope_low_freq_factor, config.rope_high_freq_factor
  turns_F = config.rope_original_length * plain_F / (2 * np.pi)
  share_F = np.clip((turns_F - low) / (high - low), 0, 1)
  return (1 - share_F) * stretched_F + share_F * plain_F


def rotate(
  x_BTNH: jax.Array, positions_BT: jax.Array, frequencies_F: np.ndarray
) -> jax.Array:
  """Turns pairs (i, i + H/2) of every head by position-dependent angles.

  Args:
    x_BTNH: queries or keys; H is even.
    positions_BT: positions within the document, int32.
    frequencies_F: angle per position of each pair; see `frequencies`.

  Returns:
    The rotated array, same shape and dtype; angles are at least float32.
  """
  wide = jnp.promote_types(x_BTNH.dtype, jnp.float32)
  angles_BT1F = positions_BT[:, :, None, None].astype(wide) * jnp.asarray(
    frequencies_F, wide
  )
  cos, sin = jnp.cos(angles_BT1F), jnp.sin(angles_BT1F)
  a, b = jnp.split(x_BTNH.astype(wide), 2, axis=-1)
  turned = jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
  return turned.astype(x_BTNH.dtype)
