"""Which token each position must predict at each offset, and where it may."""

from collections.abc import Sequence
from typing import Any

import chex
import jax
import jax.numpy as jnp
from flax import struct


class Targets(struct.PyTreeNode):
  """Targets of M offsets.

  Attributes:
    ids_MBT: the token m positions ahead; 0 where there is none.
    valid_MBT: bool; True where the target counts.
    states: arrays [B, T, ...] of what a teacher knows at t about the token at
      t + 1, which the extra heads learn from; None to learn the ids.
    n_active: how many offsets, from the first on, are trained and measured;
      None for all of them.
    offsets: the offsets.
    extra: the `Target` of the extra heads; None learns the ids.
  """

  ids_MBT: jax.Array
  valid_MBT: jax.Array
  states: Any = None
  n_active: jax.Array | None = None
  offsets: tuple[int, ...] = struct.field(pytree_node=False, default=())
  extra: Any = struct.field(pytree_node=False, default=None)

  @property
  def counts_M(self) -> jax.Array:
    """Valid targets per offset, int32."""
    return jnp.sum(self.valid_MBT, axis=(1, 2), dtype=jnp.int32)

  def only_first(self, n_active: jax.Array | None) -> "Targets":
    """Returns the targets of the first offsets alone, M as before.

    Args:
      n_active: how many; the others have no valid target. None changes
        nothing.
    """
    if n_active is None:
      return self
    is_active_M = jnp.arange(self.valid_MBT.shape[0]) < n_active
    return self.replace(
      valid_MBT=self.valid_MBT & is_active_M[:, None, None],
      n_active=jnp.asarray(n_active),
    )


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
