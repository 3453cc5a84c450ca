"""Where a block of accepted tokens must end: EOS, stop sequence or budget."""

import jax
import jax.numpy as jnp

RUNNING, EOS, LENGTH, STOP = 0, 1, 2, 3
FINISH_REASONS = ("running", "eos", "length", "stop")


def truncate(
  tokens_BJ: jax.Array,
  n_tokens_B: jax.Array,
  eos_ids_E: jax.Array,
  is_stop_BJ: jax.Array | None,
  budget_B: jax.Array,
  finish_B: jax.Array,
) -> tuple[jax.Array, jax.Array]:
  """Cuts a block at the first token that ends the text.

  Args:
    tokens_BJ: the block.
    n_tokens_B: its length.
    eos_ids_E: ids that end a text; -1 matches nothing.
    is_stop_BJ: does a stop sequence end at this token? None without any.
    budget_B: tokens that may still be committed.
    finish_B: RUNNING or why the row ended; rows that ended commit nothing.

  Returns:
    Tokens to commit, the last of the text included, and the new finish_B. What
    is both an EOS and the end of a stop sequence counts as an EOS.
  """

  def first(is_end_BJ: jax.Array) -> jax.Array:
    return jnp.where(
      jnp.any(is_end_BJ, axis=-1),
      jnp.argmax(is_end_BJ, axis=-1) + 1,
      tokens_BJ.shape[1] + 1,
    )

  first_eos_B = first(jnp.any(tokens_BJ[..., None] == eos_ids_E, axis=-1))
  first_stop_B = (
    jnp.full_like(first_eos_B, tokens_BJ.shape[1] + 1)
    if is_stop_BJ is None
    else first(is_stop_BJ)
  )
  n_B = jnp.minimum(
    jnp.minimum(n_tokens_B, budget_B), jnp.minimum(first_eos_B, first_stop_B)
  )
  is_running_B = finish_B == RUNNING
  n_B = jnp.where(is_running_B, n_B, 0)
  reason_B = jnp.select(
    [first_eos_B <= n_B, first_stop_B <= n_B, n_B == budget_B],
    [EOS, STOP, LENGTH],
    RUNNING,
  )
  return n_B, jnp.where(is_running_B, reason_B, finish_B)
