"""Sums that are read out of the loss: today's, and any that are asked for.

Each is a sum over the valid targets of a chunk; the chunks' sums are added,
and whoever reports divides by a count once.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from flax import struct

from mtpjax.losses.targets import Lesson


class Seen(NamedTuple):
  """What a readout sees of a chunk, without gradients.

  X are any leading axes: [G, C] in the scan, [B, T] unrolled.

  Attributes:
    logits_XV: the logits of one offset, in at least float32.
    lse_X: their log-normaliser.
    lesson: what was to be learned.
    valid_X: bool; does the target count?
  """

  logits_XV: jax.Array
  lse_X: jax.Array
  lesson: Lesson
  valid_X: jax.Array

  def total(self, values_X: jax.Array) -> jax.Array:
    """Sums over valid targets; further axes stay, [X, K] gives [K]."""
    axes = tuple(range(self.valid_X.ndim))
    more = values_X.ndim - self.valid_X.ndim
    valid_X = self.valid_X.reshape(*self.valid_X.shape, *(1,) * more)
    return jnp.sum(
      jnp.where(valid_X, values_X, 0), axes, dtype=self.logits_XV.dtype
    )


class Readout(Protocol):
  """A sum that is read out of the loss: a frozen dataclass.

  Attributes:
    name: of its mean per valid target, in metrics.jsonl and on the console.
  """

  @property
  def name(self) -> str:
    """See the attributes."""
    ...

  def read(self, seen: Seen) -> jax.Array:
    """Returns the sum over a chunk, a scalar or [K]; see `Seen.total`."""
    ...


def read_all(readouts: Sequence[Readout], seen: Seen) -> dict[str, jax.Array]:
  """Returns the sums of all readouts by name."""
  sums = {readout.name: readout.read(seen) for readout in readouts}
  taken = {"loss", "accuracy", "targets"} & set(sums)
  assert len(sums) == len(readouts) and not taken, "names must differ"
  return jax.lax.stop_gradient(sums)


class Sums(struct.PyTreeNode):
  """Sums over valid targets; divide by a count you trust.

  Attributes:
    objective: negative log-likelihoods plus the z-loss term.
    nll: negative log-likelihoods, nats; of a teacher's distribution the
      cross-entropy.
    correct: targets, or the teacher's arg max, that are the arg max of the
      logits.
    extra: of the readouts asked for, by name.
  """

  objective: jax.Array
  nll: jax.Array
  correct: jax.Array
  extra: dict[str, jax.Array] = struct.field(default_factory=dict)

  def __add__(self, other: "Sums") -> "Sums":
    return jax.tree.map(jnp.add, self, other)


class OffsetSums(struct.PyTreeNode):
  """What each offset did, for reading; without gradients.

  Attributes:
    nll_M: summed negative log-likelihood, nats.
    correct_M: targets that were the arg max.
    count_M: valid targets.
    extra: of the readouts asked for, by name: [M] or [M, K].
  """

  nll_M: jax.Array
  correct_M: jax.Array
  count_M: jax.Array
  extra: dict[str, jax.Array] = struct.field(default_factory=dict)

  def __add__(self, other: "OffsetSums") -> "OffsetSums":
    return jax.tree.map(jnp.add, self, other)

  def per_target(self) -> dict[str, Any]:
    """Returns the sums that are reported per valid target, by name."""
    return {"loss": self.nll_M, "accuracy": self.correct_M} | self.extra
