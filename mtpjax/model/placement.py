"""Where the rows of a pass stand, and whom they read."""

import jax
import jax.numpy as jnp
from flax import struct

from mtpjax.model.masks import Mask, Packed


class Placement(struct.PyTreeNode):
  """What a layer needs to know of the rows it runs, beside their states.

  Whatever else belongs to rows joins here, and so travels through trunk and
  heads without another parameter of theirs.

  Attributes:
    positions_BT: positions within the document.
    mask: who reads whom.
  """

  positions_BT: jax.Array
  mask: Mask

  @classmethod
  def packed(
    cls, positions_BT: jax.Array, segments_BT: jax.Array
  ) -> "Placement":
    """Returns the rows of packed documents, see `masks.Packed`."""
    return cls(positions_BT, Packed(segments_BT))

  @classmethod
  def whole(cls, tokens_BT: jax.Array) -> "Placement":
    """Returns the rows of texts from their first token on, one text a row."""
    positions_BT = jnp.broadcast_to(
      jnp.arange(tokens_BT.shape[1]), tokens_BT.shape
    )
    return cls.packed(positions_BT, jnp.ones_like(positions_BT))

  def between(
    self, rows_I: jax.Array, keys_J: jax.Array, window: int = 0
  ) -> jax.Array:
    """See `Mask.between`."""
    return self.mask.between(self.positions_BT, rows_I, keys_J, window)

  def in_cache(self, keys_J: jax.Array, window: int = 0) -> jax.Array:
    """See `Mask.in_cache`."""
    return self.mask.in_cache(self.positions_BT, keys_J, window)

  def first_key(self, row: jax.Array, window: int = 0) -> jax.Array:
    """See `Mask.first_key`."""
    return self.mask.first_key(self.positions_BT, row, window)

  def cache_in_use(self, window: int = 0) -> tuple[jax.Array, jax.Array]:
    """See `Mask.cache_in_use`."""
    return self.mask.cache_in_use(self.positions_BT, window)

  def allowed(self, capacity: int = 0, window: int = 0) -> jax.Array:
    """Returns which keys each row may read, see `Mask.allowed`."""
    return self.mask.allowed(self.positions_BT, capacity, window)
