"""Which implementation computes an attention: the one place that decides."""

import jax

from mtpjax.model.attention import blocks, full
from mtpjax.model.attention.key_values import KeyValues
from mtpjax.model.placement import Placement

# Up to so many rows all scores are written out: on CPUs fewer than what blocks
# carry along; elsewhere nobody has measured it yet, and only memory decides.
_FEW_ROWS = {"cpu": 128}
_FEW_ROWS_ELSEWHERE = 2048
# Of a cache that is not much larger than a block, all is read.
_FEW_CACHED = 512
_CACHED_BLOCK = 256


def attend(
  q_BTNH: jax.Array,
  new: KeyValues,
  placement: Placement,
  cache: KeyValues | None,
  implementation: str,
  window: int = 0,
) -> jax.Array:
  """Attends to the cache and the new rows; chooses the implementation.

  Args:
    q_BTNH: rotated queries.
    new: rotated keys and the values of this pass, T rows.
    placement: of the T rows.
    cache: keys and values of earlier passes, only read; None without.
    implementation: "auto", "blocks", "full" or "cudnn"; the last is for passes
      without a cache.
    window: positions a query looks back on; 0 is all.

  Returns:
    [B, T, N, H] in the dtype of the queries; the softmax is at least float32.
  """
  if cache is not None:
    capacity = cache.keys_BKSH.shape[2]
    is_long = capacity > _FEW_CACHED
    if implementation != "full" and is_long:
      return blocks.attend_cached(
        q_BTNH, new, placement, cache, window, _CACHED_BLOCK
      )
    return full.attend_cached(
      q_BTNH, new, placement.allowed(capacity, window), cache
    )
  t = q_BTNH.shape[1]
  chosen = chosen_for(implementation, t)
  if chosen == "blocks":
    return blocks.attend(q_BTNH, new, placement, window, block_sizes(t))
  library = "cudnn" if chosen == "cudnn" else "xla"
  return full.attend(q_BTNH, new, placement.allowed(0, window), library)


def chosen_for(implementation: str, length: int) -> str:
  """Returns which of "blocks", "full" and "cudnn" runs rows of a length."""
  if implementation != "auto":
    return implementation
  few = _FEW_ROWS.get(jax.default_backend(), _FEW_ROWS_ELSEWHERE)
  return "blocks" if length > few else "full"


def block_sizes(length: int) -> blocks.Sizes:
  """Returns the block sizes that were fastest for rows of this length.

  Of 64 to 512 queries and 128 to 512 keys, with gradients, on a CPU.
  """
  queries = 128 if length < 1024 else 256
  keys = 128 if length <= 256 else 256
  return blocks.Sizes(min(queries, length), min(keys, length))
