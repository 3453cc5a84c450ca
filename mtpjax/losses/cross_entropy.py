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
    teacher_GCD: states whose own distribution is the target, in place of
      `ids_GC`; None without a teacher.
  """

  hidden_GCD: jax.Array
  ids_GC: jax.Array
  valid_GC: jax.Array
  teacher_GCD: jax.Array | None = None


class Sums(struct.PyTreeNode):
  """Sums over valid targets; divide by a count you trust.

  Attributes:
    objective: negative log-likelihoods plus the z-loss term.
    nll: negative log-likelihoods, nats; of a teacher's distribution the
      cross-entropy.
    correct: targets, or the teacher's arg max, that are the arg max of the
      logits.
  """

  objective: jax.Array
  nll: jax.Array
  correct: jax.Array

  def __add__(self, other: "Sums") -> "Sums":
    return jax.tree.map(jnp.add, self, other)


def zero_sums(dtype: jnp.dtype) -> Sums:
  """Returns the empty sum."""
  return Sums(jnp.zeros((), dtype), jnp.zeros((), dtype), jnp.zeros((), dtype))


def _logits(hidden_GCD: jax.Array, unembedding_GDV: jax.Array) -> jax.Array:
  return jnp.einsum(
    "gcd,gdv->gcv",
    hidden_GCD,
    unembedding_GDV.astype(hidden_GCD.dtype),
    preferred_element_type=jnp.promote_types(hidden_GCD.dtype, jnp.float32),
  )


def _log_normalizer(logits_GCV: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Returns the log of the sum of exponentials, and the largest logit."""
  max_GC = jnp.max(logits_GCV, axis=-1)
  shifted_GCV = jnp.exp(logits_GCV - max_GC[..., None])
  return max_GC + jnp.log(jnp.sum(shifted_GCV, axis=-1)), max_GC


def _best(logits_GCV: jax.Array, max_GC: jax.Array) -> jax.Array:
  iota_V = jnp.arange(logits_GCV.shape[-1])
  is_max_GCV = logits_GCV == max_GC[..., None]
  return jnp.min(jnp.where(is_max_GCV, iota_V, iota_V.size), axis=-1)


def _targets(
  chunk: Chunk, teacher_GDV: jax.Array, dtype: jnp.dtype
) -> tuple[jax.Array, jax.Array]:
  """Returns the distribution to learn [G, C, V], and its most likely ids."""
  # Comparisons with an iota, not gathers: they stay local when V is sharded.
  if chunk.teacher_GCD is None:
    iota_V = jnp.arange(teacher_GDV.shape[-1])
    return (chunk.ids_GC[..., None] == iota_V).astype(dtype), chunk.ids_GC
  logits_GCV = _logits(chunk.teacher_GCD, teacher_GDV).astype(dtype)
  lse_GC, max_GC = _log_normalizer(logits_GCV)
  return jnp.exp(logits_GCV - lse_GC[..., None]), _best(logits_GCV, max_GC)


def _compare(
  chunk: Chunk,
  logits_GCV: jax.Array,
  teacher_GDV: jax.Array,
  z_loss: float,
) -> tuple[Sums, jax.Array, jax.Array]:
  dtype = logits_GCV.dtype
  targets_GCV, ids_GC = _targets(chunk, teacher_GDV, dtype)
  lse_GC, max_GC = _log_normalizer(logits_GCV)
  nll_GC = lse_GC - jnp.sum(targets_GCV * logits_GCV, axis=-1)
  objective_GC = nll_GC + z_loss * jnp.square(lse_GC)
  valid_GC = chunk.valid_GC

  def total(x_GC):
    return jnp.sum(jnp.where(valid_GC, x_GC, 0), dtype=dtype)

  sums = Sums(
    total(objective_GC),
    total(nll_GC),
    total(_best(logits_GCV, max_GC) == ids_GC),
  )
  return sums, lse_GC, targets_GCV


def chunk_sums(
  chunk: Chunk,
  unembedding_GDV: jax.Array,
  teacher_GDV: jax.Array,
  z_loss: float,
) -> Sums:
  """Computes the sums of a chunk.

  Args:
    chunk: the tokens.
    unembedding_GDV: the unembedding, one copy per shard.
    teacher_GDV: that of the teacher's states.
    z_loss: coefficient of the squared log-normaliser.

  Returns:
    `Sums`, in at least float32.
  """
  logits_GCV = _logits(chunk.hidden_GCD, unembedding_GDV)
  return _compare(chunk, logits_GCV, teacher_GDV, z_loss)[0]


def chunk_gradients(
  chunk: Chunk,
  unembedding_GDV: jax.Array,
  teacher_GDV: jax.Array,
  scale: jax.Array,
  z_loss: float,
  trains_unembedding: bool,
) -> tuple[Sums, jax.Array, jax.Array | None]:
  """Computes the sums of a chunk and the gradients of scale * objective.

  Args:
    chunk: the tokens.
    unembedding_GDV: the unembedding, one copy per shard.
    teacher_GDV: that of the teacher's states, which get no gradient.
    scale: factor of the objective, a scalar.
    z_loss: coefficient of the squared log-normaliser.
    trains_unembedding: compute the gradient of the unembedding, too.

  Returns:
    The sums; the gradient of the hidden states [G, C, D] in their dtype; that
    of the unembedding [G, D, V] in at least float32, or None.
  """
  hidden = chunk.hidden_GCD
  logits_GCV = _logits(hidden, unembedding_GDV)
  sums, lse_GC, targets_GCV = _compare(chunk, logits_GCV, teacher_GDV, z_loss)
  factor_GC = jnp.where(chunk.valid_GC, scale.astype(lse_GC.dtype), 0)
  probs_GCV = jnp.exp(logits_GCV - lse_GC[..., None])
  dlogits_GCV = factor_GC[..., None] * (
    probs_GCV * (1 + 2 * z_loss * lse_GC)[..., None] - targets_GCV
  )
  dlogits_GCV = dlogits_GCV.astype(hidden.dtype)
  dhidden_GCD = jnp.einsum(
    "gcv,gdv->gcd",
    dlogits_GCV,
    unembedding_GDV.astype(hidden.dtype),
    preferred_element_type=logits_GCV.dtype,
  ).astype(hidden.dtype)
  if not trains_unembedding:
    return sums, dhidden_GCD, None
  dunembedding_GDV = jnp.einsum(
    "gcd,gcv->gdv",
    hidden,
    dlogits_GCV,
    preferred_element_type=logits_GCV.dtype,
  )
  return sums, dhidden_GCD, dunembedding_GDV
