"""Filters: which tokens a row may sample, by one number of its request.

A filter sees what those before it in the table have left. Tokens that tie with
the last one kept are kept too.

Axes: B requests, Q nodes, V vocabulary.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp


def _top_k(k_B1: jax.Array, logits_BQV: jax.Array) -> jax.Array:
  return (k_B1 == 0)[..., None] | _largest(
    logits_BQV, jnp.ones_like(logits_BQV), k_B1.astype(logits_BQV.dtype)
  )


def _top_p(p_B1: jax.Array, logits_BQV: jax.Array) -> jax.Array:
  """Holtzman et al. (2020), section 3.1."""
  return (p_B1 >= 1)[..., None] | _largest(
    logits_BQV, jax.nn.softmax(logits_BQV, axis=-1), p_B1
  )


def _min_p(p_B1: jax.Array, logits_BQV: jax.Array) -> jax.Array:
  """Nguyen et al. (2024), section 3."""
  best_BQ1 = jnp.max(logits_BQV, axis=-1, keepdims=True)
  return logits_BQV >= best_BQ1 + jnp.log(p_B1)[..., None]


# By the setting that it reads, in the order they are applied. A filter maps the
# numbers [B, 1] of the rows, neutral ones included, and logits [B, Q, V] to
# which of the tokens are kept.
FILTERS: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
  "top_k": _top_k,
  "top_p": _top_p,
  "min_p": _min_p,
}


def apply(numbers: dict[str, jax.Array], logits_BQV: jax.Array) -> jax.Array:
  """Applies all filters; what they leave out becomes -inf.

  Args:
    numbers: of the requests, [B] by name.
    logits_BQV: at least float32.

  Returns:
    [B, Q, V].
  """
  for name, keep in FILTERS.items():
    if name not in numbers:
      continue  # a filter of other requests
    is_kept_BQV = keep(numbers[name][:, None], logits_BQV)
    logits_BQV = jnp.where(is_kept_BQV, logits_BQV, -jnp.inf)
  return logits_BQV


def _largest(
  values_BQV: jax.Array, weights_BQV: jax.Array, target_BQ: jax.Array
) -> jax.Array:
  """Marks the largest values, as few as hold `target` of the weights.

  Finds the smallest value that belongs to them bit by bit: sorting a whole
  vocabulary at every node costs several times as much, on CPUs above all.

  Args:
    values_BQV: floats, -inf included.
    weights_BQV: not negative.
    target_BQ: all are marked where the weights do not reach it.

  Returns:
    bool [B, Q, V].
  """
  width = values_BQV.dtype.itemsize * 8
  unsigned = jnp.dtype(f"uint{width}")
  # One zero: XLA would drop an addition of 0, and -0.0 is below 0.0 in bits.
  values_BQV = jnp.where(values_BQV == 0, 0, values_BQV)
  bits = jax.lax.bitcast_convert_type(values_BQV, unsigned)
  top = unsigned.type(1 << (width - 1))
  # Unsigned integers in the order of the floats.
  order_BQV = jnp.where(bits & top, ~bits, bits | top)

  def narrow(i, least_BQ):
    bit = top >> i.astype(unsigned)
    tried_BQ = least_BQ | bit
    held_BQ = jnp.sum(
      jnp.where(order_BQV >= tried_BQ[..., None], weights_BQV, 0), axis=-1
    )
    return jnp.where(held_BQ >= target_BQ, tried_BQ, least_BQ)

  least_BQ = jax.lax.fori_loop(
    0, width, narrow, jnp.zeros(values_BQV.shape[:-1], unsigned)
  )
  return order_BQV >= least_BQ[..., None]
