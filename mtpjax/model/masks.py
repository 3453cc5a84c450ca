"""Which keys a query may read.

A mask is a small struct that says of any queries and any keys who may read
whom: of new rows by `reads`, of rows of a cache by `in_cache`. Attention
asks for blocks of it, or for all of it (`allowed`), and no more. Another kind
of mask is another class.

  packed training   segments [1 1 2]      ->  [x . .]   no cache
                                              [x x .]
                                              [. . x]
  tree of one root with two children,         cache   nodes
  cache of capacity 4 that holds 2 rows   ->  [x x . . | x . .]
                                              [x x . . | x x .]
                                              [x x . . | x . x]

Axes: B batch, T new rows, I queries, J keys, S rows of a cache.
"""

import jax
import jax.numpy as jnp
from flax import struct


class Mask(struct.PyTreeNode):
  """Says who reads whom among the new rows of a pass and those of a cache.

  Rows are given by their numbers, which may lie beyond the last row: what is
  said of those does not matter. A `window` is how many positions a query looks
  back on, its own included (Mistral's sliding window; Jiang et al. 2023,
  section 2); 0 is all.
  """

  def reads(self, rows_I: jax.Array, keys_J: jax.Array) -> jax.Array:
    """Returns which new rows may read which, bool [B or 1, I, J].

    No row reads a later one. Every row may read itself, so that no row of a
    softmax is empty (padding included).

    Args:
      rows_I: numbers of the queries.
      keys_J: numbers of the keys.
    """
    raise NotImplementedError

  def between(
    self, positions_BT: jax.Array, rows_I: jax.Array, keys_J: jax.Array,
    window: int = 0,
  ) -> jax.Array:  # fmt: skip
    """Returns which new rows read which within a window, bool [B, I, J].

    Args:
      positions_BT: of the new rows, within their documents.
      rows_I: numbers of the queries.
      keys_J: numbers of the keys.
      window: see above.
    """
    shape = positions_BT.shape[0], rows_I.shape[0], keys_J.shape[0]
    allowed_BIJ = jnp.broadcast_to(self.reads(rows_I, keys_J), shape)
    if window:
      allowed_BIJ &= _is_near(
        _of(positions_BT, rows_I), _of(positions_BT, keys_J), window
      )
    return allowed_BIJ

  def in_cache(
    self, positions_BT: jax.Array, keys_J: jax.Array, window: int = 0
  ) -> jax.Array:
    """Returns which rows of the cache the new rows may read, bool [B, T, J].

    Args:
      positions_BT: of the new rows, within their documents.
      keys_J: rows of the cache; row s is at position s.
      window: see above.
    """
    raise NotImplementedError

  def first_key(
    self, positions_BT: jax.Array, row: jax.Array, window: int = 0
  ) -> jax.Array:
    """Returns a new row before which no row from `row` on reads any."""
    del positions_BT, window
    return 0 * row

  def cache_in_use(
    self, positions_BT: jax.Array, window: int = 0
  ) -> tuple[jax.Array, jax.Array]:
    """Returns the first row of the cache that is read, and that after the last.

    Of any row of the batch.
    """
    raise NotImplementedError

  def allowed(
    self, positions_BT: jax.Array, capacity: int = 0, window: int = 0
  ) -> jax.Array:
    """Returns the whole mask.

    Args:
      positions_BT: of the new rows, within their documents.
      capacity: rows S of the cache; 0 without one.
      window: see above.

    Returns:
      bool [B, 1, T, S + T]: may the query read the key?
    """
    rows_T = jnp.arange(positions_BT.shape[1])
    allowed_BTJ = self.between(positions_BT, rows_T, rows_T, window)
    if capacity:
      cached_BTS = self.in_cache(positions_BT, jnp.arange(capacity), window)
      allowed_BTJ = jnp.concatenate([cached_BTS, allowed_BTJ], axis=-1)
    return allowed_BTJ[:, None]


class Packed(Mask):
  """Causal attention inside each document of a packed row, without a cache.

  Attributes:
    segments_BT: document of each row. A row reads those of its own document
      up to itself.
  """

  segments_BT: jax.Array

  def reads(self, rows_I: jax.Array, keys_J: jax.Array) -> jax.Array:
    """See `Mask.reads`."""
    of_rows_BI = _of(self.segments_BT, rows_I)
    of_keys_BJ = _of(self.segments_BT, keys_J)
    is_same_BIJ = of_rows_BI[:, :, None] == of_keys_BJ[:, None]
    return is_same_BIJ & (keys_J <= rows_I[:, None])

  def first_key(
    self, positions_BT: jax.Array, row: jax.Array, window: int = 0
  ) -> jax.Array:
    """See `Mask.first_key`: documents lie in one piece."""
    back_B = _of(positions_BT, row[None])[:, 0]
    if window:
      back_B = jnp.minimum(back_B, window - 1)
    return jnp.maximum(row - jnp.max(back_B), 0)


class Tree(Mask):
  """Nodes that read the filled part of the cache and their ancestors.

  Attributes:
    ancestors_QQ: [q, k] is True if node k is q or an ancestor of it.
    cache_lengths_B: rows of the cache that every node may read.
  """

  ancestors_QQ: jax.Array
  cache_lengths_B: jax.Array

  def reads(self, rows_I: jax.Array, keys_J: jax.Array) -> jax.Array:
    """See `Mask.reads`."""
    allowed_QJ = jnp.take(self.ancestors_QQ, keys_J, axis=1, mode="clip")
    return jnp.take(allowed_QJ, rows_I, axis=0, mode="clip")[None]

  def in_cache(
    self, positions_BT: jax.Array, keys_J: jax.Array, window: int = 0
  ) -> jax.Array:
    """See `Mask.in_cache`."""
    is_filled_BJ = keys_J < self.cache_lengths_B[:, None]
    allowed_BTJ = jnp.broadcast_to(
      is_filled_BJ[:, None], (*positions_BT.shape, keys_J.shape[0])
    )
    if window:
      keys_BJ = jnp.broadcast_to(keys_J, is_filled_BJ.shape)
      allowed_BTJ &= _is_near(positions_BT, keys_BJ, window)
    return allowed_BTJ

  def cache_in_use(
    self, positions_BT: jax.Array, window: int = 0
  ) -> tuple[jax.Array, jax.Array]:
    """See `Mask.cache_in_use`."""
    end = jnp.max(self.cache_lengths_B)
    first = jnp.zeros_like(end)
    if window:
      # Rows of the batch that are empty look at nothing.
      first = jnp.minimum(
        jnp.maximum(jnp.min(positions_BT) - window + 1, 0), end
      )
    return first, end


def _of(x_BT: jax.Array, rows_I: jax.Array) -> jax.Array:
  """Returns the values [B, I] of rows; beyond the last row anything."""
  return jnp.take(x_BT, rows_I, axis=1, mode="clip")


def _is_near(
  queries_BT: jax.Array, keys_BS: jax.Array, window: int
) -> jax.Array:
  """Returns whether the key is less than `window` positions back, [B, T, S]."""
  return queries_BT[:, :, None] - keys_BS[:, None, :] < window
