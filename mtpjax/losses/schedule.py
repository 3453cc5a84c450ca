"""How much each offset counts, and how many are trained, by step."""

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import chex
import jax
import jax.numpy as jnp


class Schedule(Protocol):
  """Weights and active offsets by step.

  The step is traced: what depends on it is computed on the device, and no
  step needs a program of its own.
  """

  def weights(self, step: jax.Array) -> jax.Array | Sequence[float]:
    """Returns the weight of each offset, [M]; a sequence is constant."""
    ...

  def n_active(self, step: jax.Array) -> jax.Array | None:
    """Returns how many offsets, from the first on, are trained.

    The others are neither run nor measured. None trains all, always.
    """
    ...


@dataclasses.dataclass(frozen=True)
class Constant:
  """The same at every step.

  Attributes:
    offset_weights: weight per offset; empty means all 1.
  """

  offset_weights: tuple[float, ...] = ()

  def weights(self, step: jax.Array) -> Sequence[float]:
    """See `Schedule`."""
    del step
    return self.offset_weights

  def n_active(self, step: jax.Array) -> None:
    """See `Schedule`."""
    del step


def offset_coefficients(
  counts_M: jax.Array, weights: jax.Array | Sequence[float]
) -> jax.Array:
  """Returns weight / count per offset; an offset without targets gets 0.

  Args:
    counts_M: valid targets of the *whole* batch: all devices and all
      accumulation steps. Dividing once by these keeps a step's gradient the
      same however the batch is cut.
    weights: weight per offset; empty means all 1.

  Returns:
    float32 [M].
  """
  if len(weights):
    chex.assert_shape(counts_M, (len(weights),))
  else:
    weights = (1.0,) * counts_M.shape[0]
  weights_M = jnp.asarray(weights, jnp.float32)
  return jnp.where(counts_M > 0, weights_M / jnp.maximum(counts_M, 1), 0.0)
