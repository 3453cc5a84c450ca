"""Cross-entropy of one chunk of tokens, with hand-written gradients.

Axes: G shards of the batch (each device holds its own), C tokens of a chunk,
D width, V vocabulary. The shard axis is written out so that every product
stays on its device and the gradient of the unembedding is summed over devices
once, by whoever sums over G, and not once per chunk.
"""

import jax
import jax.numpy as jnp
from flax import struct


class Chunk(struct.PyTreeNode):
  """A chunk of tokens.

  Attributes:
    hidden_GCD: hidden states ready for the unembedding.
    ids_GC: target ids.
    valid_GC: bool; does the target count?
  """

  hidden_GCD: jax.Array
  ids_GC: jax.Array
  valid_GC: jax.Array


class Sums(struct.PyTreeNode):
  """Sums over valid targets; divide by a count you trust.

  Attributes:
    objective: negative log-likelihoods plus the z-loss term.
    nll: negative log-likelihoods, nats.
    correct: targets that are the arg max of the logits.
  """

  objective: jax.Array
  nll: jax.Array
  correct: jax.Array

  def __add__(self, other: "Sums") -> "Sums":
    return jax.tree.map(jnp.add, self, other)


def zero_sums(dtype: jnp.dtype) -> Sums:
  """Returns the empty sum."""
  return Sums(jnp.zeros((), dtype), jnp.zeros((), dtype), jnp.zeros((), dtype))


def _logits(chunk: Chunk, unembedding_GDV: jax.Array) -> jax.Array:
  hidden = chunk.hidden_GCD
  return jnp.einsum(
    "gcd,gdv->gcv",
    hidden,
    unembedding_GDV.astype(hidden.dtype),
    preferred_element_type=jnp.promote_types(hidden.dtype, jnp.float32),
  )


def _sums_and_lse(
  chunk: Chunk, logits_GCV: jax.Array, z_loss: float
) -> tuple[Sums, jax.Array, jax.Array]:
  # Comparisons with an iota, not gathers: they stay local when V is sharded.
  dtype = logits_GCV.dtype
  iota_V = jnp.arange(logits_GCV.shape[-1])
  is_target_GCV = chunk.ids_GC[..., None] == iota_V
  max_GC = jnp.max(logits_GCV, axis=-1)
  lse_GC = max_GC + jnp.log(
    jnp.sum(jnp.exp(logits_GCV - max_GC[..., None]), axis=-1)
  )
  target_GC = jnp.sum(jnp.where(is_target_GCV, logits_GCV, 0), axis=-1)
  best_GC = jnp.min(
    jnp.where(logits_GCV == max_GC[..., None], iota_V, iota_V.size), axis=-1
  )
  nll_GC = lse_GC - target_GC
  objective_GC = nll_GC + z_loss * jnp.square(lse_GC)
  valid_GC = chunk.valid_GC

  def total(x_GC):
    return jnp.sum(jnp.where(valid_GC, x_GC, 0), dtype=dtype)

  sums = Sums(
    total(objective_GC), total(nll_GC), total(best_GC == chunk.ids_GC)
  )
  return sums, lse_GC, is_target_GCV


def chunk_sums(chunk: Chunk, unembedding_GDV: jax.Array, z_loss: float) -> Sums:
  """Computes the sums of a chunk.

  Args:
    chunk: the tokens.
    unembedding_GDV: the unembedding, one copy per shard.
    z_loss: coefficient of the squared log-normaliser.

  Returns:
    `Sums`, in at least float32.
  """
  return _sums_and_lse(chunk, _logits(chunk, unembedding_GDV), z_loss)[0]


def chunk_gradients(
  chunk: Chunk,
  unembedding_GDV: jax.Array,
  scale: jax.Array,
  z_loss: float,
) -> tuple[Sums, jax.Array, jax.Array]:
  """Computes the sums of a chunk and the gradients of scale * objective.

  Args:
    chunk: the tokens.
    unembedding_GDV: the unembedding, one copy per shard.
    scale: factor of the objective, a scalar.
    z_loss: coefficient of the squared log-normaliser.

  Returns:
    The sums; the gradient of the hidden states [G, C, D] in their dtype; that
    of the unembedding [G, D, V] in at least float32.
  """
  hidden = chunk.hidden_GCD
  logits_GCV = _logits(chunk, unembedding_GDV)
  sums, lse_GC, is_target_GCV = _sums_and_lse(chunk, logits_GCV, z_loss)
  factor_GC = jnp.where(chunk.valid_GC, scale.astype(lse_GC.dtype), 0)
  probs_GCV = jnp.exp(logits_GCV - lse_GC[..., None])
  dlogits_GCV = factor_GC[..., None] * (
    probs_GCV * (1 + 2 * z_loss * lse_GC)[..., None] - is_target_GCV
  )
  dlogits_GCV = dlogits_GCV.astype(hidden.dtype)
  dhidden_GCD = jnp.einsum(
    "gcv,gdv->gcd",
    dlogits_GCV,
    unembedding_GDV.astype(hidden.dtype),
    preferred_element_type=logits_GCV.dtype,
  ).astype(hidden.dtype)
  dunembedding_GDV = jnp.einsum(
    "gcd,gcv->gdv",
    hidden,
    dlogits_GCV,
    preferred_element_type=logits_GCV.dtype,
  )
  return sums, dhidden_GCD, dunembedding_GDV
