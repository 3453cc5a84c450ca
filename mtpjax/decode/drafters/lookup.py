"""Drafts from the text itself: what followed these tokens the last time.

Prompt lookup (Saxena 2023): the longest n-gram that ends the text and occurred
before proposes what came after it. No training; works on any model.
"""

import jax
import jax.numpy as jnp

from mtpjax.decode.drafters.drafts import Drafts


def find(
  tokens_BS: jax.Array, length_B: jax.Array, longest: int, n: int
) -> tuple[jax.Array, jax.Array]:
  """Continues the last occurrence of the longest n-gram that ends a text.

  Args:
    tokens_BS: texts; what lies beyond `length_B` means nothing.
    length_B: position of the last token.
    longest: tokens of an n-gram at most, at least 1.
    n: tokens to propose.

  Returns:
    The tokens [B, n], and whether there are any [B]. A continuation that runs
    into the end of the text goes on periodically.
  """
  positions_S = jnp.arange(tokens_BS.shape[1])
  is_before_BS = positions_S < length_B[:, None]
  matched_BS = jnp.zeros(tokens_BS.shape, jnp.int32)
  goes_on_BS = is_before_BS
  for back in range(longest):
    own_B1 = jnp.take_along_axis(
      tokens_BS, jnp.maximum(length_B - back, 0)[:, None], axis=1
    )
    # What stands `back` tokens before each position.
    there_BS = jnp.roll(tokens_BS, back, axis=1)
    goes_on_BS &= (there_BS == own_B1) & (positions_S >= back)
    matched_BS += goes_on_BS
  # The longest match, among those the latest.
  best_BS = matched_BS * tokens_BS.shape[1] + positions_S
  end_B = jnp.argmax(jnp.where(matched_BS > 0, best_BS, -1), axis=1)
  is_found_B = jnp.any(matched_BS > 0, axis=1)
  period_B1 = jnp.maximum(length_B - end_B, 1)[:, None]
  taken_BN = end_B[:, None] + 1 + jnp.arange(n) % period_B1
  return jnp.take_along_axis(tokens_BS, taken_BN, axis=1), is_found_B


def propose(
  tokens_BS: jax.Array,
  length_B: jax.Array,
  longest: int,
  n: int,
  vocab_size: int | None,
) -> Drafts:
  """Drafts a chain; see `find`.

  Args:
    tokens_BS: see `find`.
    length_B: see `find`.
    longest: see `find`.
    n: drafts.
    vocab_size: V, where the verifier asks for probabilities; else None.

  Returns:
    Drafts of one candidate per depth.
  """
  tokens_BM, is_found_B = find(tokens_BS, length_B, longest, n)
  is_valid_BM = jnp.broadcast_to(is_found_B[:, None], tokens_BM.shape)
  return Drafts(
    tokens_BM[..., None],
    is_valid_BM[..., None],
    # Nothing was drawn: all of the probability is on the proposal.
    None if vocab_size is None else jax.nn.one_hot(tokens_BM, vocab_size),
  )
