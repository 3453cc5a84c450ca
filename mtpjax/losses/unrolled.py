"""The ordinary loss: all logits of all offsets alive, gradients by JAX."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from mtpjax.losses.inputs import Head, HeadInputs
from mtpjax.losses.readout import OffsetSums, Readout, Seen, read_all
from mtpjax.losses.targets import Labels, Lesson, Targets, look_ahead
from mtpjax.model import gradient_probe, unembed


def unrolled_loss(
  head: Head,
  inputs: HeadInputs,
  targets: Targets,
  coefficients_M: jax.Array,
  context: Any,
  z_loss: float,
  readouts: Sequence[Readout],
) -> tuple[jax.Array, OffsetSums]:
  """Computes the loss of `multi_offset_loss`; see there."""
  hidden_states = [inputs.hidden_BTD]
  for m in range(targets.ids_MBT.shape[0] - 1):
    params = jax.tree.map(lambda leaf, m=m: leaf[m], inputs.per_offset)
    tap_BTD = gradient_probe(inputs.tap_BTD, inputs.probes[m])
    hidden_states.append(head(params, inputs.shared, tap_BTD, context))
  loss: Any = 0.0
  per_offset = []
  for m, hidden_BTD in enumerate(hidden_states):
    unembedding_DV = inputs.unembedding_DV
    if m > 0 and inputs.own_MDV is not None:
      unembedding_DV = inputs.own_MDV[m - 1]
    logits_BTV = unembed(hidden_BTD, unembedding_DV)
    lse_BT = jax.nn.logsumexp(logits_BTV, axis=-1)
    lesson = _lesson(inputs, targets, m, logits_BTV)
    seen = Seen(logits_BTV, lse_BT, lesson, targets.valid_MBT[m])
    nll_BT = lse_BT - _expected(lesson, logits_BTV)
    nll, penalty, correct = map(
      seen.total,
      (
        nll_BT,
        z_loss * jnp.square(lse_BT),
        jnp.argmax(logits_BTV, axis=-1) == lesson.best_X,
      ),
    )
    loss += coefficients_M[m] * (nll + penalty)
    per_offset.append((nll, correct, read_all(readouts, seen)))
  nll_M, correct_M, extra = jax.tree.map(
    lambda *sums: jnp.stack(sums), *per_offset
  )
  sums = OffsetSums(nll_M, correct_M, targets.counts_M, extra)
  return loss, jax.lax.stop_gradient(sums)


def _lesson(
  inputs: HeadInputs, targets: Targets, m: int, logits_BTV: jax.Array
) -> Lesson:
  """What the offset at place m is to learn, at all positions."""
  target, states = Labels(), None
  if m > 0:
    target = targets.extra or target
    states = jax.tree.map(
      lambda x: look_ahead(x, targets.offsets[m] - 1), targets.states
    )
  lesson = target.lesson(
    targets.ids_MBT[m],
    states,
    lambda states_BTD: unembed(states_BTD, inputs.unembedding_DV),
    logits_BTV.shape[-1],
    logits_BTV.dtype,
  )
  return lesson._replace(probs_XV=jax.lax.stop_gradient(lesson.probs_XV))


def _expected(lesson: Lesson, logits_BTV: jax.Array) -> jax.Array:
  """The logits' mean under the distribution that is to be learned."""
  if not lesson.is_token:
    return jnp.sum(lesson.probs_XV * logits_BTV, axis=-1)
  # JAX would keep the distribution for the backward pass: a [B, T, V] more.
  return jnp.take_along_axis(
    logits_BTV, lesson.best_X[..., None], axis=-1
  ).squeeze(-1)
