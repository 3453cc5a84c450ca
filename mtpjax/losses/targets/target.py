"""What an offset learns: the protocol of a target.

Axes: X are any leading axes, [G, C] in the scan and [B, T] unrolled.
"""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from mtpjax.losses.targets.targets import Targets


class Lesson(NamedTuple):
  """What is to be learned at some positions.

  Attributes:
    probs_XV: the distribution.
    best_X: its most likely ids, which accuracy is counted by.
    is_token: all of the probability is at `best_X`.
  """

  probs_XV: jax.Array
  best_X: jax.Array
  is_token: bool = False


class Source(NamedTuple):
  """What a target may be made from.

  Attributes:
    hidden_BTD: the model's own states, ready for the unembedding.
    unembedding_DV: the model's unembedding.
    batch: the packed rows; a data pipeline may put more into them.
    chunk_tokens: positions whose logits may be alive at a time.
  """

  hidden_BTD: jax.Array
  unembedding_DV: jax.Array
  batch: dict[str, jax.Array]
  chunk_tokens: int


class Target(Protocol):
  """What the extra heads learn; offset 1 always learns the labels.

  A frozen dataclass: it is a static part of the program. Nothing of it gets
  a gradient.

  Attributes:
    needs_base: it takes a pretrained model for its teacher.
  """

  needs_base: ClassVar[bool]

  def of(self, labels: Targets, source: Source) -> Targets:
    """Returns the targets of a batch.

    Args:
      labels: what the text says. Validity is not the target's to change.
      source: what else there is.

    Returns:
      `labels`, with other ids, or with `states`: arrays [B, T, ...] of what
      is known at t about the token at t + 1. Offset m gets them m - 1
      positions ahead, cut into chunks.
    """
    ...

  def lesson(
    self,
    ids_X: jax.Array,
    states: Any,
    logits: Callable[[jax.Array], jax.Array],
    vocab_size: int,
    dtype: jnp.dtype,
  ) -> Lesson:
    """Returns what is learned at some positions; called chunk by chunk.

    Args:
      ids_X: target ids.
      states: the `states` of these positions.
      logits: states [X, D] -> logits [X, V] by the model's unembedding.
      vocab_size: V.
      dtype: of the distribution.
    """
    ...


class TargetIds:
  """A target that is a token: all of the probability is at its id."""

  def lesson(
    self,
    ids_X: jax.Array,
    states: Any,
    logits: Callable[[jax.Array], jax.Array],
    vocab_size: int,
    dtype: jnp.dtype,
  ) -> Lesson:
    """See `Target`."""
    del states, logits
    # A comparison with an iota, not a gather: local when V is sharded.
    iota_V = jnp.arange(vocab_size)
    probs_XV = (ids_X[..., None] == iota_V).astype(dtype)
    return Lesson(probs_XV, ids_X, is_token=True)
