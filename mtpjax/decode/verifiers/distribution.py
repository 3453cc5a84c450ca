"""Arithmetic on distributions over the vocabulary."""

import jax
import jax.numpy as jnp
import numpy as np


def mass_of(
  mass_BKV: jax.Array,
  at_P: np.ndarray,
  tokens_BP: jax.Array,
  valid_BP: jax.Array,
) -> jax.Array:
  """Looks up the mass of tokens.

  Args:
    mass_BKV: K distributions a row.
    at_P: which of them each token belongs to.
    tokens_BP: the tokens; anything where not valid.
    valid_BP: which of them there are.

  Returns:
    [B, P]; 0 where not valid.
  """
  rows_B1 = jnp.arange(mass_BKV.shape[0])[:, None]
  # Padding must not index: -1 would be the last token.
  tokens_BP = jnp.where(valid_BP, tokens_BP, 0)
  return jnp.where(valid_BP, mass_BKV[rows_B1, at_P, tokens_BP], 0)


def normalized(mass: jax.Array, otherwise: jax.Array) -> jax.Array:
  """Divides by the sum over the last axis; `otherwise` where that is 0."""
  total = jnp.sum(mass, axis=-1, keepdims=True)
  return jnp.where(total > 0, mass / jnp.where(total > 0, total, 1), otherwise)
