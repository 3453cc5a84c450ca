"""Which keys a query may read.

A mask is a small struct with one method, `allowed`, that turns it into
booleans. Keys are the rows of the cache, if there is one, then the new rows of
this pass. Another kind of mask is another class; attention asks no more of it.

  packed training   segments [1 1 2]      ->  [x . .]   no cache
                                              [x x .]
                                              [. . x]
  tree of one root with two children,         cache   nodes
  cache of capacity 4 that holds 2 rows   ->  [x x . . | x . .]
                                              [x x . . | x x .]
                                              [x x . . | x . x]
"""

import jax
import jax.numpy as jnp
from flax import struct


class Mask(struct.PyTreeNode):
  """Says who reads whom among the new rows of a pass and those of a cache."""

  def allowed(
    self, positions_BT: jax.Array, capacity: int = 0, window: int = 0
  ) -> jax.Array:
    """Turns the mask into booleans.

    Args:
      positions_BT: of the new rows, within their documents.
      capacity: rows S of the cache, row s at position s; 0 without one.
      window: positions a query looks back on, its own included (Mistral's
        sliding window; Jiang et al. 2023, section 2); 0 is all.

    Returns:
      bool [B, 1, T, S + T]: may the query read the key? Every query may read
      itself, so that no row of a softmax is empty (padding included).
    """
    raise NotImplementedError


class Packed(Mask):
  """Causal attention inside each document of a packed row, without a cache.

  Attributes:
    segments_BT: document of each row. A row reads those of its own document
      up to itself.
  """

  segments_BT: jax.Array

  def allowed(
    self, positions_BT: jax.Array, capacity: int = 0, window: int = 0
  ) -> jax.Array:
    """See `Mask.allowed`."""
    assert not capacity, "packed rows read no cache"
    segments_BT = self.segments_BT
    n = segments_BT.shape[1]
    causal_TT = jnp.tril(jnp.ones((n, n), dtype=bool))
    same_BTT = segments_BT[:, :, None] == segments_BT[:, None, :]
    allowed_BTS = same_BTT & causal_TT
    if window:
      allowed_BTS &= _is_near(positions_BT, positions_BT, window)
    return allowed_BTS[:, None]


class Tree(Mask):
  """Nodes that read the filled part of the cache and their ancestors.

  Attributes:
    ancestors_QQ: [q, k] is True if node k is q or an ancestor of it.
    cache_lengths_B: rows of the cache that every node may read.
  """

  ancestors_QQ: jax.Array
  cache_lengths_B: jax.Array

  def allowed(
    self, positions_BT: jax.Array, capacity: int = 0, window: int = 0
  ) -> jax.Array:
    """See `Mask.allowed`."""
    nodes, batch = self.ancestors_QQ.shape[0], self.cache_lengths_B.shape[0]
    in_cache_BS = jnp.arange(capacity) < self.cache_lengths_B[:, None]
    in_cache = jnp.broadcast_to(
      in_cache_BS[:, None, None, :], (batch, 1, nodes, capacity)
    )
    among_new = jnp.broadcast_to(self.ancestors_QQ, (batch, 1, nodes, nodes))
    allowed_B1TS = jnp.concatenate([in_cache, among_new], axis=-1)
    if window:
      cached_BS = jnp.broadcast_to(jnp.arange(capacity), (batch, capacity))
      keys_BS = jnp.concatenate([cached_BS, positions_BT], axis=1)
      allowed_B1TS &= _is_near(positions_BT, keys_BS, window)[:, None]
    return allowed_B1TS


def _is_near(
  queries_BT: jax.Array, keys_BS: jax.Array, window: int
) -> jax.Array:
  """Returns whether the key is less than `window` positions back, [B, T, S]."""
  return queries_BT[:, :, None] - keys_BS[:, None, :] < window
