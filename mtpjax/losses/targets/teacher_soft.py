"""The model's own distribution as the target."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from mtpjax.losses.logits import best_ids, log_normalizer
from mtpjax.losses.targets.target import Lesson, Source
from mtpjax.losses.targets.targets import Targets


@dataclasses.dataclass(frozen=True)
class TeacherSoft:
  """Offset m learns the model's distribution of the token m ahead."""

  needs_base: ClassVar[bool] = True

  def of(self, labels: Targets, source: Source) -> Targets:
    """See `Target`."""
    return labels.replace(states=source.hidden_BTD)

  def lesson(
    self,
    ids_X: jax.Array,
    states: Any,
    logits: Callable[[jax.Array], jax.Array],
    vocab_size: int,
    dtype: jnp.dtype,
  ) -> Lesson:
    """See `Target`."""
    del ids_X, vocab_size
    logits_XV = logits(states).astype(dtype)
    lse_X, max_X = log_normalizer(logits_XV)
    probs_XV = jnp.exp(logits_XV - lse_X[..., None])
    return Lesson(probs_XV, best_ids(logits_XV, max_X))
