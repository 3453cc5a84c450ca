"""All randomness of decoding: a function of request and absolute position.

The Gumbel noise of a position is shared by whoever chooses a token for it:
plain sampling, the drafts, and the targets that verify them. Verifiers that
need coins of their own draw them for the position of the root, which no two
passes of a request have in common.
"""

from typing import Any

import jax

_DRAFT, _VERIFY = 1, 2


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


def _pass_keys(keys_B: jax.Array, root_B: jax.Array, purpose: int) -> Any:
  def one(key, position):
    return jax.random.fold_in(jax.random.fold_in(key, position), purpose)

  return jax.vmap(one)(keys_B, root_B)


def draft_noise(
  keys_B: jax.Array, root_B: jax.Array, depths: int, vocab_size: int
) -> jax.Array:
  """Draws Gumbel noise for drafts that are independent of their targets.

  Drawn anew in every pass, even for a position that was drafted before: what
  was accepted may have depended on the earlier draft.

  Args:
    keys_B: one key per request.
    root_B: position of the root of the pass.
    depths: M.
    vocab_size: V.

  Returns:
    float32 [B, M, V].
  """
  keys_B = _pass_keys(keys_B, root_B, _DRAFT)
  return jax.vmap(lambda k: jax.random.gumbel(k, (depths, vocab_size)))(keys_B)


def coins(
  keys_B: jax.Array, root_B: jax.Array, nodes: int
) -> tuple[jax.Array, jax.Array]:
  """Draws the uniforms of a verifier.

  Args:
    keys_B: one key per request.
    root_B: position of the root of the pass.
    nodes: Q.

  Returns:
    [B, Q] in [0, 1) that accept nodes, and [B] that draws the last token.
  """
  keys_B = _pass_keys(keys_B, root_B, _VERIFY)
  uniform = jax.vmap(lambda k: jax.random.uniform(k, (nodes + 1,)))(keys_B)
  return uniform[:, :-1], uniform[:, -1]
