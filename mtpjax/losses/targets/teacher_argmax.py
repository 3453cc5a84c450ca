"""The model's own choice as the target."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from mtpjax.losses.targets.target import Source, TargetIds
from mtpjax.losses.targets.targets import Targets, look_ahead
from mtpjax.model import unembed


@dataclasses.dataclass(frozen=True)
class TeacherArgmax(TargetIds):
  """Offset m learns the model's most likely token m positions ahead."""

  needs_base: ClassVar[bool] = True

  def of(self, labels: Targets, source: Source) -> Targets:
    """See `Target`."""
    best_BT = most_likely(
      source.hidden_BTD, source.unembedding_DV, source.chunk_tokens
    )
    # What the model says of the token m ahead it says one before it.
    others = [look_ahead(best_BT, m - 1) for m in labels.offsets[1:]]
    return labels.replace(ids_MBT=jnp.stack([labels.ids_MBT[0], *others]))


def most_likely(
  hidden_BTD: jax.Array, unembedding_DV: jax.Array, chunk_tokens: int
) -> jax.Array:
  """Returns the model's own next token at every position, without gradient.

  Args:
    hidden_BTD: states ready for the unembedding.
    unembedding_DV: the unembedding.
    chunk_tokens: positions of a row whose logits are alive at a time.

  Returns:
    Ids [B, T].
  """
  b, t, d = hidden_BTD.shape
  size = min(chunk_tokens, t)
  n = -(-t // size)
  padded_BTD = jnp.pad(hidden_BTD, ((0, 0), (0, n * size - t), (0, 0)))
  chunks_NBCD = padded_BTD.reshape(b, n, size, d).swapaxes(0, 1)
  ids_NBC = jax.lax.map(
    lambda x_BCD: jnp.argmax(unembed(x_BCD, unembedding_DV), axis=-1),
    jax.lax.stop_gradient(chunks_NBCD),
  )
  return ids_NBC.swapaxes(0, 1).reshape(b, n * size)[:, :t]
