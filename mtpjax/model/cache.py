"""The key/value cache: read-only during a pass, written once after it."""

import jax
import jax.numpy as jnp

from mtpjax import config as config_lib
from mtpjax.model.attention import KeyValues


def empty(config: config_lib.Model, batch: int, capacity: int) -> KeyValues:
  """Returns the cache of one layer, [B, K, S, H], of zeros."""
  shape = (batch, config.n_kv_heads, capacity, config.d_head)
  zeros = jnp.zeros(shape, config.dtype)
  return KeyValues(zeros, zeros)


def fill(
  cache: KeyValues, rows: KeyValues, start: int | jax.Array = 0
) -> KeyValues:
  """Writes the rows of prompts, [B, K, T, H], from row `start` on."""
  return jax.tree.map(
    lambda c, r: jax.lax.dynamic_update_slice_in_dim(
      c, r.astype(c.dtype), start, axis=2
    ),
    cache,
    rows,
  )


def commit(
  cache: KeyValues, rows: KeyValues, path_BJ: jax.Array, start_B: jax.Array
) -> KeyValues:
  """Writes the rows of an accepted path after those already there.

  All J rows are written; those beyond the accepted ones lie past the length
  that masks the cache, and the next pass overwrites them.

  Args:
    cache: [B, K, S, H]; start_B + J must not exceed S, since
      `dynamic_update_slice` would silently move the rows back.
    rows: of all nodes of the pass, [B, K, Q, H].
    path_BJ: the nodes of the path, in order.
    start_B: rows in the cache.

  Returns:
    The cache, to be updated in place where the caller donates it.
  """

  def write(c_BKSH: jax.Array, r_BKQH: jax.Array) -> jax.Array:
    taken_BKJH = jnp.take_along_axis(
      r_BKQH, path_BJ[:, None, :, None], axis=2
    ).astype(c_BKSH.dtype)
    # One slice per row of the batch: as a batched update this is a scatter,
    # which XLA runs element by element on a CPU.
    for b in range(c_BKSH.shape[0]):
      c_BKSH = jax.lax.dynamic_update_slice(
        c_BKSH, taken_BKJH[b : b + 1], (b, 0, start_B[b], 0)
      )
    return c_BKSH

  return jax.tree.map(write, cache, rows)


def after_reads(start_B: jax.Array, never_B: jax.Array) -> jax.Array:
  """Returns where rows are written, unchanged, but known after reads only.

  The place of new rows then depends on what was read from the caches, so the
  compiler writes them in place. Where it knows the place beforehand (a tree
  that is its root alone) it writes early, and copies every cache for that.

  Args:
    start_B: rows in the cache, int.
    never_B: False, computed from what was read in a way that the compiler does
      not see through: it does see through optimization barriers.

  Returns:
    start_B.
  """
  return start_B + never_B
