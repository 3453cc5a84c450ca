"""From logits to tokens: one function for targets and drafts alike.

At temperature > 0 a token is arg max(logits / temperature + Gumbel noise), and
the noise belongs to the request and the absolute position of the token.
Target and draft see the same noise, so a draft is right exactly if plain
sampling would have drawn it: the output does not depend on the drafts.
"""

import jax
import jax.numpy as jnp


def request_key(seed: int | jax.Array, index: int | jax.Array) -> jax.Array:
  """Returns the key of request `index` of a run with this seed."""
  return jax.random.fold_in(jax.random.key(seed), index)


def position_noise(
  keys_B: jax.Array, positions_BT: jax.Array, vocab_size: int
) -> jax.Array:
  """Draws the Gumbel noise of tokens.

  Args:
    keys_B: one key per request.
    positions_BT: absolute positions of the tokens.
    vocab_size: V.

  Returns:
    float32 [B, T, V]; a pure function of key and position.
  """

  def draw(key, position):
    return jax.random.gumbel(jax.random.fold_in(key, position), (vocab_size,))

  return jax.vmap(jax.vmap(draw, (None, 0)))(keys_B, positions_BT)


def scores(
  logits_BTV: jax.Array,
  temperature_B: jax.Array,
  noise_BTV: jax.Array | None,
) -> jax.Array:
  """Returns what the choice of a token is the arg max of.

  Args:
    logits_BTV: at least float32.
    temperature_B: 0 is greedy.
    noise_BTV: from `position_noise`; None if every row is greedy.

  Returns:
    [B, T, V].
  """
  if noise_BTV is None:
    return logits_BTV
  temperature_B11 = temperature_B[:, None, None]
  sampled = logits_BTV / jnp.where(temperature_B11 > 0, temperature_B11, 1)
  return jnp.where(temperature_B11 > 0, sampled + noise_BTV, logits_BTV)
