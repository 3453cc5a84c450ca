"""Keys and values."""

import jax
from flax import struct


class KeyValues(struct.PyTreeNode):
  """Keys and values of rows, [B, K, rows, H] each; a cache or new rows."""

  keys_BKSH: jax.Array
  values_BKSH: jax.Array
