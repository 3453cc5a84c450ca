"""Cuts the tokens of a batch into chunks, each shard's into its own.

Axes: G shards of the batch (each device holds its own), C tokens of a chunk.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from mtpjax import parallel
from mtpjax.losses.targets import Labels, Target, Targets


class Chunk(struct.PyTreeNode):
  """A chunk of tokens of one offset.

  Attributes:
    hidden_GCD: hidden states ready for the unembedding.
    ids_GC: target ids.
    valid_GC: bool; does the target count?
    states: the target's states of these tokens; None without.
    target: what is learned of them.
  """

  hidden_GCD: jax.Array
  ids_GC: jax.Array
  valid_GC: jax.Array
  states: Any = None
  target: Target = struct.field(pytree_node=False, default=Labels())


class OffsetTarget(struct.PyTreeNode):
  """What one offset learns; with a leading axis, what several do.

  Attributes:
    ids_BT: target ids.
    valid_BT: bool; does the target count?
    ahead: positions ahead of which the target's states lie; None without.
    target: what is learned.
  """

  ids_BT: jax.Array
  valid_BT: jax.Array
  ahead: jax.Array | None = None
  target: Target = struct.field(pytree_node=False, default=Labels())


def split_targets(targets: Targets) -> tuple[OffsetTarget, OffsetTarget | None]:
  """Returns what offset 1 learns, and what the others do, to be scanned."""
  ids_MBT, valid_MBT = targets.ids_MBT, targets.valid_MBT
  first = OffsetTarget(ids_MBT[0], valid_MBT[0])
  if ids_MBT.shape[0] == 1:
    return first, None
  ahead_M = None
  if targets.states is not None:
    # What is known of the token m ahead is known one before it.
    ahead_M = jnp.asarray(targets.offsets[1:], jnp.int32) - 1
  return first, OffsetTarget(
    ids_MBT[1:], valid_MBT[1:], ahead_M, targets.extra or Labels()
  )


@dataclasses.dataclass(frozen=True)
class Cutter:
  """Cuts arrays of a batch into chunks, and joins them again.

  Attributes:
    mesh: the mesh the batch is cut over.
    chunk_tokens: tokens of a shard in one chunk.
  """

  mesh: jax.sharding.Mesh
  chunk_tokens: int

  @functools.cached_property
  def shards(self) -> int:
    """Into how many parts the batch is cut by the mesh."""
    return parallel.batch_shards(self.mesh)

  def chunks(
    self, hidden_BTD: jax.Array, target: OffsetTarget, targets: Targets
  ) -> Chunk:
    """Returns the chunks of one offset, stacked on axis 0."""
    states = None
    if target.ahead is not None:
      states = jax.tree.map(
        lambda x: self._cut(_ahead(x, target.ahead, targets.offsets)),
        targets.states,
      )
    return Chunk(
      self._cut(hidden_BTD), self._cut(target.ids_BT),
      self._cut(target.valid_BT), states, target.target,
    )  # fmt: skip

  def _cut(self, x: jax.Array) -> jax.Array:
    """[B, T, ...] -> [chunks, G, C, ...]; the last chunk is filled with 0."""
    tokens = x.shape[0] * x.shape[1] // self.shards
    size = min(self.chunk_tokens, tokens)
    n = -(-tokens // size)
    x = x.reshape(self.shards, tokens, *x.shape[2:])
    pad = [(0, 0), (0, n * size - tokens)] + [(0, 0)] * (x.ndim - 2)
    x = jnp.pad(x, pad).reshape(self.shards, n, size, *x.shape[2:])
    x = x.swapaxes(0, 1)
    return parallel.constrain(
      x, self.mesh, None, "batch", *(None,) * (x.ndim - 2)
    )

  def join(self, chunks_NGCD: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Returns the array [B, T, D] that was cut into these chunks."""
    flat = chunks_NGCD.swapaxes(0, 1).reshape(self.shards, -1, shape[-1])
    tokens = shape[0] * shape[1] // self.shards
    return parallel.constrain(
      flat[:, :tokens].reshape(shape), self.mesh, "batch", "time", "width"
    )


def _ahead(x: Any, ahead: Any, offsets: tuple[int, ...]) -> jax.Array:
  """Returns what is `ahead` positions ahead, a traced number; 0 at the end."""
  pad = [(0, 0), (0, max(offsets))] + [(0, 0)] * (x.ndim - 2)
  return jax.lax.dynamic_slice_in_dim(
    jnp.pad(x, pad), ahead, x.shape[1], axis=1
  )
