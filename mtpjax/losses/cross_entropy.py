"""Cross-entropy of one chunk of tokens, with hand-written gradients.

Axes: G shards of the batch (each device holds its own), C tokens of a chunk,
D width, V vocabulary. The shard axis is written out so that every product
stays on its device and the gradient of the unembedding is summed over devices
once, by whoever sums over G, and not once per chunk.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from mtpjax.losses.chunks import Chunk
from mtpjax.losses.logits import best_ids, log_normalizer, sharded_logits
from mtpjax.losses.readout import Readout, Seen, Sums, read_all


class Unembeddings(NamedTuple):
  """The unembeddings of one offset, one copy per shard.

  Attributes:
    own_GDV: that of the offset's states.
    model_GDV: the model's, which a target's states go through. It gets no
      gradient from that.
  """

  own_GDV: jax.Array
  model_GDV: jax.Array


def _compare(
  chunk: Chunk,
  logits_GCV: jax.Array,
  model_GDV: jax.Array,
  z_loss: float,
  readouts: Sequence[Readout],
) -> tuple[Sums, Seen]:
  dtype = logits_GCV.dtype
  lesson = chunk.target.lesson(
    chunk.ids_GC,
    chunk.states,
    lambda states_GCD: sharded_logits(states_GCD, model_GDV),
    logits_GCV.shape[-1],
    dtype,
  )
  lse_GC, max_GC = log_normalizer(logits_GCV)
  nll_GC = lse_GC - jnp.sum(lesson.probs_XV * logits_GCV, axis=-1)
  objective_GC = nll_GC + z_loss * jnp.square(lse_GC)
  seen = Seen(logits_GCV, lse_GC, lesson, chunk.valid_GC)
  sums = Sums(
    seen.total(objective_GC),
    seen.total(nll_GC),
    seen.total(best_ids(logits_GCV, max_GC) == lesson.best_X),
    read_all(readouts, seen),
  )
  return sums, seen


def chunk_sums(
  chunk: Chunk,
  unembeddings: Unembeddings,
  z_loss: float,
  readouts: Sequence[Readout],
) -> Sums:
  """Computes the sums of a chunk.

  Args:
    chunk: the tokens.
    unembeddings: of the offset and of its target.
    z_loss: coefficient of the squared log-normaliser.
    readouts: further sums.

  Returns:
    `Sums`, in at least float32.
  """
  logits_GCV = sharded_logits(chunk.hidden_GCD, unembeddings.own_GDV)
  return _compare(chunk, logits_GCV, unembeddings.model_GDV, z_loss, readouts)[
    0
  ]


def chunk_gradients(
  chunk: Chunk,
  unembeddings: Unembeddings,
  scale: jax.Array,
  z_loss: float,
  readouts: Sequence[Readout],
  trains_unembedding: bool,
) -> tuple[Sums, jax.Array, jax.Array | None]:
  """Computes the sums of a chunk and the gradients of scale * objective.

  Args:
    chunk: the tokens.
    unembeddings: of the offset and of its target.
    scale: factor of the objective, a scalar.
    z_loss: coefficient of the squared log-normaliser.
    readouts: further sums.
    trains_unembedding: compute the gradient of the unembedding, too.

  Returns:
    The sums; the gradient of the hidden states [G, C, D] in their dtype; that
    of the unembedding [G, D, V] in at least float32, or None.
  """
  hidden = chunk.hidden_GCD
  logits_GCV = sharded_logits(hidden, unembeddings.own_GDV)
  sums, seen = _compare(
    chunk, logits_GCV, unembeddings.model_GDV, z_loss, readouts
  )
  lse_GC = seen.lse_X
  factor_GC = jnp.where(chunk.valid_GC, scale.astype(lse_GC.dtype), 0)
  probs_GCV = jnp.exp(logits_GCV - lse_GC[..., None])
  dlogits_GCV = factor_GC[..., None] * (
    probs_GCV * (1 + 2 * z_loss * lse_GC)[..., None] - seen.lesson.probs_XV
  )
  dlogits_GCV = dlogits_GCV.astype(hidden.dtype)
  dhidden_GCD = jnp.einsum(
    "gcv,gdv->gcd",
    dlogits_GCV,
    unembeddings.own_GDV.astype(hidden.dtype),
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
