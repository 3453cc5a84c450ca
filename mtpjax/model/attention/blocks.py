"""Attention block by block, its scores never written out.

A running softmax (Dao et al. 2022, algorithm 1): over the blocks of keys of a
block of queries the largest score, the sum of exponentials and the weighted sum
of values are carried along. Of the forward pass only the output and the log of
the sum are kept; the backward pass computes the scores again (Dao et al. 2023,
algorithm 2). Memory is linear in T. Blocks that no query of theirs may read,
above the diagonal, beyond a window, before the first document, are left out.

Axes: B batch, T query positions, S cache rows, N query attention heads, K
key/value heads, G = N / K, H head width, I queries of a block, J keys of a
block, X = G x I rows of one product.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from mtpjax.errors import UserError
from mtpjax.model.attention.key_values import KeyValues
from mtpjax.model.placement import Placement

# Scores that may not be read. Finite, so that no difference of two is NaN.
_NEVER = -1e30


class Sizes(NamedTuple):
  """Rows of a block of queries, and of a block of keys."""

  queries: int
  keys: int


class _Running(NamedTuple):
  """A softmax so far: largest score, sum of exponentials, sum of values."""

  largest_BKX: jax.Array
  total_BKX: jax.Array
  out_BKXH: jax.Array


def _matmul(a: jax.Array, b: jax.Array, wide: Any) -> jax.Array:
  return jnp.matmul(a, b, preferred_element_type=wide)


def _scores(
  q_BKXH: jax.Array, keys_BKJH: jax.Array, allowed_BIJ: jax.Array, wide: Any
) -> jax.Array:
  """Returns scaled scores [B, K, X, J]; what may not be read is `_NEVER`."""
  b, k, x, h = q_BKXH.shape
  i, j = allowed_BIJ.shape[1:]
  scores = _matmul(q_BKXH, keys_BKJH.swapaxes(2, 3), wide) * h**-0.5
  scores = jnp.where(
    allowed_BIJ[:, None, None],
    scores.reshape(b, k, x // i, i, j),
    jnp.asarray(_NEVER, wide),
  )
  return scores.reshape(b, k, x, j)


def _start(q_BKXH: jax.Array, wide: Any) -> _Running:
  shape = q_BKXH.shape
  return _Running(
    jnp.full(shape[:3], _NEVER, wide),
    jnp.zeros(shape[:3], wide),
    jnp.zeros(shape, wide),
  )


def _go_on(
  running: _Running, scores_BKXJ: jax.Array, values_BKJH: jax.Array
) -> _Running:
  largest_BKX = jnp.maximum(running.largest_BKX, jnp.max(scores_BKXJ, axis=-1))
  # Before the first key that a row may read this counts keys that it may not;
  # the first one that it may multiplies them all by exactly 0.
  probs_BKXJ = jnp.exp(scores_BKXJ - largest_BKX[..., None])
  kept_BKX = jnp.exp(running.largest_BKX - largest_BKX)
  added_BKXH = _matmul(
    probs_BKXJ.astype(values_BKJH.dtype), values_BKJH, scores_BKXJ.dtype
  )
  return _Running(
    largest_BKX,
    kept_BKX * running.total_BKX + jnp.sum(probs_BKXJ, axis=-1),
    kept_BKX[..., None] * running.out_BKXH + added_BKXH,
  )


def _block(x_BKSH: jax.Array, start: Any, size: int) -> jax.Array:
  return jax.lax.dynamic_slice_in_dim(x_BKSH, start, size, axis=2)


def _folded(x_BTNH: jax.Array, n_kv_heads: int, size: int) -> jax.Array:
  """Returns the blocks of queries [blocks, B, K, X, H]; padded at the end."""
  b, t, n, h = x_BTNH.shape
  g, blocks = n // n_kv_heads, -(-t // size)
  x_BTNH = jnp.pad(x_BTNH, ((0, 0), (0, blocks * size - t), (0, 0), (0, 0)))
  x = x_BTNH.reshape(b, blocks, size, n_kv_heads, g, h)
  return x.transpose(1, 0, 3, 4, 2, 5).reshape(
    blocks, b, n_kv_heads, g * size, h
  )


def _unfolded(x: jax.Array, t: int, size: int) -> jax.Array:
  """Undoes `_folded`: returns [B, T, N, H]."""
  blocks, b, k, rows, h = x.shape
  x = x.reshape(blocks, b, k, rows // size, size, h).transpose(1, 0, 4, 2, 3, 5)
  return x.reshape(b, blocks * size, -1, h)[:, :t]


class _Plan:
  """Which blocks of keys a block of queries reads, and what of them."""

  def __init__(self, placement: Placement, sizes: Sizes, window: int):
    self.placement = placement
    self.sizes = sizes
    self.window = window
    self.length = placement.positions_BT.shape[1]

  def bounds(self, number: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the first block of keys, and that after the last one."""
    first = number * self.sizes.queries
    last = jnp.minimum(first + self.sizes.queries, self.length)
    lowest = self.placement.first_key(first, self.window)
    return lowest // self.sizes.keys, -(-last // self.sizes.keys)

  def allowed(self, number: jax.Array, key_block: jax.Array) -> jax.Array:
    """Returns bool [B, I, J]."""
    return self.placement.between(
      number * self.sizes.queries + jnp.arange(self.sizes.queries),
      key_block * self.sizes.keys + jnp.arange(self.sizes.keys),
      self.window,
    )


def _padded(x_BKSH: jax.Array, size: int) -> jax.Array:
  return jnp.pad(x_BKSH, ((0, 0), (0, 0), (0, -x_BKSH.shape[2] % size), (0, 0)))


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def attend(
  q_BTNH: jax.Array,
  new: KeyValues,
  placement: Placement,
  window: int,
  sizes: Sizes,
) -> jax.Array:
  """Attends to new rows alone, none of which reads a later one.

  Args:
    q_BTNH: rotated queries.
    new: rotated keys, and values, of the same rows.
    placement: of the rows.
    window: positions a query looks back on; 0 is all.
    sizes: of blocks.

  Returns:
    [B, T, N, H] in the dtype of the queries. It can be differentiated once.
  """
  return _forward(q_BTNH, new, placement, window, sizes)[0]


def _forward(q_BTNH, new, placement, window, sizes):
  n_kv_heads, t = new.keys_BKSH.shape[1], q_BTNH.shape[1]
  wide = jnp.promote_types(q_BTNH.dtype, jnp.float32)
  plan = _Plan(placement, sizes, window)
  keys_BKSH = _padded(new.keys_BKSH, sizes.keys)
  values_BKSH = _padded(new.values_BKSH, sizes.keys)

  def one(_, xs):
    number, q_BKXH = xs

    def add(j, running):
      scores_BKXJ = _scores(
        q_BKXH,
        _block(keys_BKSH, j * sizes.keys, sizes.keys),
        plan.allowed(number, j),
        wide,
      )
      values_BKJH = _block(values_BKSH, j * sizes.keys, sizes.keys)
      return _go_on(running, scores_BKXJ, values_BKJH)

    running = jax.lax.fori_loop(*plan.bounds(number), add, _start(q_BKXH, wide))
    out_BKXH = running.out_BKXH / running.total_BKX[..., None]
    log_total_BKX = running.largest_BKX + jnp.log(running.total_BKX)
    return None, (out_BKXH.astype(q_BTNH.dtype), log_total_BKX)

  blocks = _folded(q_BTNH, n_kv_heads, sizes.queries)
  _, (out, log_totals) = jax.lax.scan(
    one, None, (jnp.arange(len(blocks)), blocks)
  )
  return _unfolded(out, t, sizes.queries), log_totals


def _forward_and_kept(q_BTNH, new, placement, window, sizes):
  out_BTNH, log_totals = _forward(q_BTNH, new, placement, window, sizes)
  return out_BTNH, (q_BTNH, new, placement, out_BTNH, log_totals)


def _backward(window, sizes, kept, dout_BTNH):
  q_BTNH, new, placement, out_BTNH, log_totals = kept
  dq_BTNH, dnew = _gradients(
    q_BTNH, new, placement, out_BTNH, log_totals, dout_BTNH, window, sizes
  )
  return dq_BTNH, dnew, None


@functools.partial(jax.custom_vjp, nondiff_argnums=(6, 7))
def _gradients(
  q_BTNH, new, placement, out_BTNH, log_totals, dout_BTNH, window, sizes
):
  n_kv_heads = new.keys_BKSH.shape[1]
  _, t, _, h = q_BTNH.shape
  wide = jnp.promote_types(q_BTNH.dtype, jnp.float32)
  plan = _Plan(placement, sizes, window)
  keys_BKSH = _padded(new.keys_BKSH, sizes.keys)
  values_BKSH = _padded(new.values_BKSH, sizes.keys)

  def one(carry, xs):
    number, q_BKXH, dout_BKXH, log_total_BKX, slope_BKX = xs

    def add(j, carry):
      dq_BKXH, dkeys_BKSH, dvalues_BKSH = carry
      start = j * sizes.keys
      keys_BKJH = _block(keys_BKSH, start, sizes.keys)
      values_BKJH = _block(values_BKSH, start, sizes.keys)
      scores_BKXJ = _scores(q_BKXH, keys_BKJH, plan.allowed(number, j), wide)
      probs_BKXJ = jnp.exp(scores_BKXJ - log_total_BKX[..., None])
      dprobs_BKXJ = _matmul(dout_BKXH, values_BKJH.swapaxes(2, 3), wide)
      dscores_BKXJ = probs_BKXJ * (dprobs_BKXJ - slope_BKX[..., None]) * h**-0.5
      dscores_BKXJ = dscores_BKXJ.astype(q_BKXH.dtype)
      probs_BKXJ = probs_BKXJ.astype(q_BKXH.dtype)

      def added(total_BKSH, change_BKJH):
        there = _block(total_BKSH, start, sizes.keys)
        return jax.lax.dynamic_update_slice_in_dim(
          total_BKSH, there + change_BKJH, start, axis=2
        )

      return (
        dq_BKXH + _matmul(dscores_BKXJ, keys_BKJH, wide),
        added(dkeys_BKSH, _matmul(dscores_BKXJ.swapaxes(2, 3), q_BKXH, wide)),
        added(
          dvalues_BKSH, _matmul(probs_BKXJ.swapaxes(2, 3), dout_BKXH, wide)
        ),
      )

    dq_BKXH, *carry = jax.lax.fori_loop(
      *plan.bounds(number), add, (jnp.zeros(q_BKXH.shape, wide), *carry)
    )
    return tuple(carry), dq_BKXH.astype(q_BKXH.dtype)

  def fold(x_BTNH):
    return _folded(x_BTNH, n_kv_heads, sizes.queries)

  slope_BTN1 = jnp.sum(
    dout_BTNH.astype(wide) * out_BTNH.astype(wide), axis=-1, keepdims=True
  )
  blocks = fold(q_BTNH)
  zeros_BKSH = jnp.zeros(keys_BKSH.shape, wide)
  (dkeys_BKSH, dvalues_BKSH), dq = jax.lax.scan(
    one,
    (zeros_BKSH, zeros_BKSH),
    (
      jnp.arange(len(blocks)), blocks, fold(dout_BTNH), log_totals,
      fold(slope_BTN1)[..., 0],
    ),
  )  # fmt: skip
  length = new.keys_BKSH.shape[2]
  return _unfolded(dq, t, sizes.queries), KeyValues(
    dkeys_BKSH[:, :, :length].astype(new.keys_BKSH.dtype),
    dvalues_BKSH[:, :, :length].astype(new.values_BKSH.dtype),
  )


def _no_second_gradient(*_):
  raise UserError(
    "model.attention: blocks can be differentiated once; set it to full for "
    "gradients of gradients"
  )


attend.defvjp(_forward_and_kept, _backward)
_gradients.defvjp(_no_second_gradient, _no_second_gradient)


def attend_cached(
  q_BTNH: jax.Array,
  new: KeyValues,
  placement: Placement,
  cache: KeyValues,
  window: int,
  size: int,
) -> jax.Array:
  """Attends to as much of a cache as is in use, and to new rows.

  Blocks of the cache that no row of the batch reads are left out. To the others
  it makes no difference, bit for bit, how many there are.

  Args:
    q_BTNH: rotated queries.
    new: rotated keys, and values, of this pass.
    placement: of the rows; its mask reads a cache.
    cache: keys and values of earlier passes, at least `size` rows.
    window: positions a query looks back on; 0 is all.
    size: rows of the cache that are read at a time.

  Returns:
    [B, T, N, H] in the dtype of the queries.
  """
  t, n_kv_heads = q_BTNH.shape[1], new.keys_BKSH.shape[1]
  capacity = cache.keys_BKSH.shape[2]
  wide = jnp.promote_types(q_BTNH.dtype, jnp.float32)
  [q_BKXH] = _folded(q_BTNH, n_kv_heads, t)
  # Every row reads itself, so that the softmax begins with something.
  allowed_BTT = placement.between(jnp.arange(t), jnp.arange(t), window)
  running = _go_on(
    _start(q_BKXH, wide),
    _scores(q_BKXH, new.keys_BKSH, allowed_BTT, wide),
    new.values_BKSH,
  )

  def add(j, running):
    # The last block may begin within the one before; its keys count once.
    start = jnp.minimum(j * size, capacity - size)
    keys_J = start + jnp.arange(size)
    allowed_BTJ = placement.in_cache(keys_J, window) & (keys_J >= j * size)
    scores_BKXJ = _scores(
      q_BKXH, _block(cache.keys_BKSH, start, size), allowed_BTJ, wide
    )
    return _go_on(running, scores_BKXJ, _block(cache.values_BKSH, start, size))

  first, last = placement.cache_in_use(window)
  running = jax.lax.fori_loop(first // size, -(-last // size), add, running)
  out_BKXH = running.out_BKXH / running.total_BKX[..., None]
  return _unfolded(out_BKXH[None].astype(q_BTNH.dtype), t, t)
