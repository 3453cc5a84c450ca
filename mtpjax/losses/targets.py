"""Which token each position must predict at each offset, and where it may."""

from collections.abc import Sequence

import chex
import jax
import jax.numpy as jnp
from flax import struct


class Targets(struct.PyTreeNode):
  """Targets of M offsets.

  Attributes:
    ids_MBT: the token m positions ahead; 0 where there is none.
    valid_MBT: bool; True where the target counts.
    teacher_BTD: states ready for the unembedding, whose next-token distribution
      the extra heads learn in place of `ids_MBT`; None to learn the ids.
    offsets: the offsets.
  """

  ids_MBT: jax.Array
  valid_MBT: jax.Array
  teacher_BTD: jax.Array | None = None
  offsets: tuple[int, ...] = struct.field(pytree_node=False, default=())

  @property
  def counts_M(self) -> jax.Array:
    """Valid targets per offset, int32."""
    return jnp.sum(self.valid_MBT, axis=(1, 2), dtype=jnp.int32)


def look_ahead(x_BT: jax.Array, m: int) -> jax.Array:
  """Returns what is m positions ahead, [B, T, ...]; 0 after the row's end."""
  gap = [(0, 0), (0, min(m, x_BT.shape[1]))] + [(0, 0)] * (x_BT.ndim - 2)
  return jnp.pad(x_BT[:, m:], gap)


def shift_targets(
  tokens_BT: jax.Array,
  segments_BT: jax.Array,
  loss_mask_BT: jax.Array,
  offsets: Sequence[int],
) -> Targets:
  """Looks the targets of all offsets up.

  Offset m at position t is valid if t + m is in the row, in the same document
  (compared on the original segment ids, so that no offset crosses into the
  next document), not padding (segment 0), and passes the loss mask as a
  *target*: the last token of a prompt learns the first token of the answer.

  Args:
    tokens_BT: token ids.
    segments_BT: document of each token; 0 is padding.
    loss_mask_BT: bool; may the token be a target?
    offsets: the offsets, each at least 1.

  Returns:
    `Targets` in the order of `offsets`.

  Raises:
    AssertionError: the arrays have other shapes than their names say.
  """
  chex.assert_equal_shape([tokens_BT, segments_BT, loss_mask_BT])
  chex.assert_rank(tokens_BT, 2)

  ids, valid = [], []
  for m in offsets:
    segment_ahead_BT = look_ahead(segments_BT, m)
    ids.append(look_ahead(tokens_BT, m))
    valid.append(
      (segments_BT == segment_ahead_BT)
      & (segment_ahead_BT != 0)
      & look_ahead(loss_mask_BT.astype(bool), m)
    )
  return Targets(jnp.stack(ids), jnp.stack(valid), offsets=tuple(offsets))
