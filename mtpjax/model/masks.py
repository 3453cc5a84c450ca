"""Which keys a query may read.

A mask is a small struct; `allowed` is the one function that turns it into
booleans. Keys are the rows of the cache, if there is one, then the new rows
of this pass:

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


class AttentionMask(struct.PyTreeNode):
  """Says who reads whom; make one with `packed` or `tree`.

  Attributes:
    segments_BT: document of each new row; None for a tree. A row reads the
      rows of its own segment up to itself.
    ancestors_QQ: [q, k] is True if node k is q or an ancestor of it; None for
      packed rows.
    cache_lengths_B: rows of the cache that every query may read; None without
      a cache.
  """

  segments_BT: jax.Array | None = None
  ancestors_QQ: jax.Array | None = None
  cache_lengths_B: jax.Array | None = None


def packed(segments_BT: jax.Array) -> AttentionMask:
  """Causal attention inside each document of a packed row."""
  return AttentionMask(segments_BT=segments_BT)


def tree(ancestors_QQ: jax.Array, cache_lengths_B: jax.Array) -> AttentionMask:
  """Tree nodes that read the filled part of the cache and their ancestors."""
  return AttentionMask(
    ancestors_QQ=ancestors_QQ, cache_lengths_B=cache_lengths_B
  )


def allowed(
  mask: AttentionMask,
  positions_BT: jax.Array,
  capacity: int = 0,
  window: int = 0,
) -> jax.Array:
  """Turns a mask into booleans.

  Args:
    mask: the mask.
    positions_BT: of the new rows, within their documents.
    capacity: rows S of the cache, row s at position s; 0 without one.
    window: positions a query looks back on, its own included (Mistral's
      sliding window; Jiang et al. 2023, section 2); 0 is all.

  Returns:
    bool [B, 1, T, S + T]: may the query read the key? Every query may read
    itself, so that no row of a softmax is empty (padding included).
  """
  if mask.segments_BT is not None:
    segments_BT = mask.segments_BT
    n = segments_BT.shape[1]
    causal_TT = jnp.tril(jnp.ones((n, n), dtype=bool))
    same_BTT = segments_BT[:, :, None] == segments_BT[:, None, :]
    allowed_BTS = same_BTT & causal_TT
    if window:
      allowed_BTS &= _is_near(positions_BT, positions_BT, window)
    return allowed_BTS[:, None]
  assert mask.ancestors_QQ is not None, "a mask is packed or a tree"
  assert mask.cache_lengths_B is not None, "a tree reads a cache"
  nodes = mask.ancestors_QQ.shape[0]
  batch = mask.cache_lengths_B.shape[0]
  in_cache_BS = jnp.arange(capacity) < mask.cache_lengths_B[:, None]
  in_cache = jnp.broadcast_to(
    in_cache_BS[:, None, None, :], (batch, 1, nodes, capacity)
  )
  among_new = jnp.broadcast_to(mask.ancestors_QQ, (batch, 1, nodes, nodes))
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
