"""The scan over offsets around the scan over chunks of tokens.

One device holds the logits of one chunk of one offset at a time. Gradients of
the unembedding, the tap and the shared parameters are carried along; those of
a head's own parameters are what the scan over heads puts out.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from mtpjax import parallel
from mtpjax.losses import cross_entropy
from mtpjax.losses.cross_entropy import Chunk, Sums
from mtpjax.losses.inputs import Head, HeadInputs, OffsetSums
from mtpjax.losses.targets import Targets
from mtpjax.model import gradient_probe


class _Target(struct.PyTreeNode):
  """What one offset learns; with a leading axis, what several do.

  Attributes:
    ids_BT: target ids.
    valid_BT: bool; does the target count?
    ahead: positions ahead of which the teacher's state lies; None without.
  """

  ids_BT: jax.Array
  valid_BT: jax.Array
  ahead: jax.Array | None = None


def _add(a: Any, b: Any) -> Any:
  """Adds two trees; None, where nothing is asked for, stays None."""
  return jax.tree.map(jnp.add, a, b)


class OffsetScan:
  """Two functions of (inputs, targets, coefficients_M, context).

  Both return (loss, `OffsetSums`), take `unembedding_DV` with a leading shard
  axis, and compute no gradient unless they are differentiated. Coefficients
  and context get none.

  Attributes:
    fused: computes gradients in the forward pass and keeps them.
    remat: computes loss and gradients anew in the backward pass.
  """

  def __init__(
    self,
    head: Head,
    mesh: jax.sharding.Mesh,
    chunk_tokens: int,
    z_loss: float,
    only_heads: bool,
  ):
    """Fixes what is not an array; see `multi_offset_loss`."""
    self.head = head
    self.mesh = mesh
    self.shards = parallel.batch_shards(mesh)
    self.chunk_tokens = chunk_tokens
    self.z_loss = z_loss
    self.only_heads = only_heads
    self.fused = jax.custom_vjp(self._loss)
    self.fused.defvjp(self._loss_and_gradients, self._scale)
    self.remat = jax.custom_vjp(self._loss)
    self.remat.defvjp(
      lambda *arguments: (self._loss(*arguments), arguments),
      lambda arguments, cotangents: self._scale(
        self._loss_and_gradients(*arguments)[1], cotangents
      ),
    )

  def _loss(self, inputs, targets, coefficients_M, context):
    """The loss alone: evaluation, and the forward pass of `remat`."""

    def body(_, xs):
      params, own_DV, target = xs
      hidden_BTD = self.head(params, inputs.shared, inputs.tap_BTD, context)
      return None, self._sums(
        inputs, hidden_BTD, self._spread(own_DV, inputs), targets, target
      )

    first_target, other_targets = self._split(targets)
    first = self._sums(
      inputs, inputs.hidden_BTD, inputs.unembedding_DV, targets, first_target
    )
    others = None
    if other_targets is not None:
      _, others = jax.lax.scan(
        body, None, (inputs.per_offset, inputs.own_MDV, other_targets)
      )
    return self._report(first, others, targets, coefficients_M)

  def _sums(self, inputs, hidden_BTD, unembedding_GDV, targets, target) -> Sums:
    """The sums of one offset, chunk by chunk."""

    def add(sums, chunk):
      return sums + cross_entropy.chunk_sums(
        chunk, unembedding_GDV, inputs.unembedding_DV, self.z_loss
      ), None

    chunks = self._cut(hidden_BTD, targets, target)
    return jax.lax.scan(add, self._zero(inputs), chunks)[0]

  def _spread(self, own_DV: jax.Array | None, inputs: HeadInputs) -> jax.Array:
    """A head's own unembedding, a copy per shard, or the shared one."""
    if own_DV is None:
      return inputs.unembedding_DV
    return parallel.constrain(
      jnp.broadcast_to(own_DV, inputs.unembedding_DV.shape),
      self.mesh, "batch", "width", "vocab",
    )  # fmt: skip

  def _split(self, targets: Targets) -> tuple[_Target, _Target | None]:
    """The targets of offset 1, and those of the others, to be scanned."""
    ids_MBT, valid_MBT = targets.ids_MBT, targets.valid_MBT
    first = _Target(ids_MBT[0], valid_MBT[0])
    if ids_MBT.shape[0] == 1:
      return first, None
    ahead_M = None
    if targets.teacher_BTD is not None:
      # What the teacher says of the token m ahead it says one before it.
      ahead_M = jnp.asarray(targets.offsets[1:], jnp.int32) - 1
    return first, _Target(ids_MBT[1:], valid_MBT[1:], ahead_M)

  def _loss_and_gradients(self, inputs, targets, coefficients_M, context):
    """Forward and backward of each head in turn; fig. 2 of the paper."""
    wide = self._zero(inputs).nll.dtype

    def one(dunembedding_GDV, hidden_BTD, unembedding_GDV, target, coefficient):
      def add(carry, chunk):
        sums, dunembedding_GDV = carry
        more, dhidden, d = cross_entropy.chunk_gradients(
          chunk, unembedding_GDV, inputs.unembedding_DV, coefficient,
          self.z_loss, trains_unembedding=dunembedding_GDV is not None,
        )  # fmt: skip
        return (sums + more, _add(dunembedding_GDV, d)), dhidden

      chunks = self._cut(hidden_BTD, targets, target)
      (sums, dunembedding_GDV), dhidden = jax.lax.scan(
        add, (self._zero(inputs), dunembedding_GDV), chunks
      )
      return dunembedding_GDV, sums, self._uncut(dhidden, hidden_BTD.shape)

    def zero_dunembedding():
      return parallel.constrain(
        jnp.zeros(inputs.unembedding_DV.shape, wide),
        self.mesh, "batch", "width", "vocab",
      )  # fmt: skip

    def body(carry, xs):
      dunembedding_GDV, dtap_BTD, dshared = carry
      params, own_DV, target, coefficient, probe = xs

      def whole_head(params, shared, tap_BTD, probe):
        tap_BTD = gradient_probe(tap_BTD, probe)
        return self.head(params, shared, tap_BTD, context)

      if self.only_heads:
        hidden_BTD, pull_back = jax.vjp(
          lambda params, probe: whole_head(
            params, inputs.shared, inputs.tap_BTD, probe
          ),
          params,
          probe,
        )
      else:
        hidden_BTD, pull_back = jax.vjp(
          whole_head, params, inputs.shared, inputs.tap_BTD, probe
        )
      unembedding_GDV = self._spread(own_DV, inputs)
      down = dunembedding_GDV if own_DV is None else zero_dunembedding()
      down, sums, dhidden_BTD = one(
        down, hidden_BTD, unembedding_GDV, target, coefficient
      )
      if own_DV is None:
        dunembedding_GDV, down_DV = down, None
      else:
        down_DV = jnp.sum(down, axis=0)
      dparams, *between, dprobe = pull_back(dhidden_BTD)
      if between:
        dshared, dtap_BTD = _add((dshared, dtap_BTD), tuple(between))
      carry = dunembedding_GDV, dtap_BTD, dshared
      return carry, (sums, dparams, down_DV, dprobe)

    first_target, other_targets = self._split(targets)
    dshared: Any = None
    dtap_BTD: Any = None
    dunembedding_GDV: Any = None
    dhidden_BTD: Any = None
    if self.only_heads:
      first = self._sums(
        inputs, inputs.hidden_BTD, inputs.unembedding_DV, targets, first_target
      )
    else:
      dunembedding_GDV, first, dhidden_BTD = one(
        zero_dunembedding(), inputs.hidden_BTD, inputs.unembedding_DV,
        first_target, coefficients_M[0],
      )  # fmt: skip
      dtap_BTD = jnp.zeros(inputs.tap_BTD.shape, wide)
      dshared = jax.tree.map(
        lambda x: jnp.zeros(x.shape, jnp.promote_types(x.dtype, wide)),
        inputs.shared,
      )
    # Zero where there is no head; also for heads no target is given for.
    others = None
    dhead_params, down_MDV, dprobes = jax.tree.map(
      jnp.zeros_like, (inputs.per_offset, inputs.own_MDV, inputs.probes)
    )
    if other_targets is not None:
      (dunembedding_GDV, dtap_BTD, dshared), outputs = jax.lax.scan(
        body,
        (dunembedding_GDV, dtap_BTD, dshared),
        (
          inputs.per_offset, inputs.own_MDV, other_targets,
          coefficients_M[1:], inputs.probes,
        ),
      )  # fmt: skip
      others, dhead_params, down_MDV, dprobes = outputs
    gradients = HeadInputs(
      per_offset=dhead_params,
      shared=dshared,
      hidden_BTD=dhidden_BTD,
      tap_BTD=dtap_BTD,
      unembedding_DV=dunembedding_GDV,
      probes=dprobes,
      own_MDV=down_MDV,
    )
    # None stands for a gradient that nobody asks for.
    gradients = jax.tree.map(
      lambda g, x: None if g is None else g.astype(x.dtype),
      gradients,
      inputs,
      is_leaf=lambda g: g is None,
    )
    return self._report(first, others, targets, coefficients_M), gradients

  def _scale(self, gradients, cotangents):
    cotangent, _ = cotangents
    scaled = jax.tree.map(lambda g: g * cotangent.astype(g.dtype), gradients)
    # A probe holds a squared norm, so it scales with the square.
    probes = gradients.probes * jnp.square(cotangent)
    return scaled.replace(probes=probes), None, None, None

  def _cut(self, hidden_BTD, targets: Targets, target: "_Target") -> Chunk:
    """Cuts the tokens of each shard into chunks, stacked on axis 0."""
    g = self.shards
    tokens = target.ids_BT.size // g
    size = min(self.chunk_tokens, tokens)
    n = -(-tokens // size)

    def cut(x):
      x = x.reshape(g, tokens, *x.shape[2:])
      pad = [(0, 0), (0, n * size - tokens)] + [(0, 0)] * (x.ndim - 2)
      x = jnp.pad(x, pad).reshape(g, n, size, *x.shape[2:]).swapaxes(0, 1)
      return parallel.constrain(
        x, self.mesh, None, "batch", *(None,) * (x.ndim - 2)
      )

    teacher = None
    if target.ahead is not None and targets.teacher_BTD is not None:
      states_BTD = targets.teacher_BTD
      room = max(targets.offsets)
      ahead_BTD = jax.lax.dynamic_slice_in_dim(
        jnp.pad(states_BTD, ((0, 0), (0, room), (0, 0))),
        target.ahead, states_BTD.shape[1], axis=1,
      )  # fmt: skip
      teacher = cut(ahead_BTD)
    return Chunk(
      cut(hidden_BTD), cut(target.ids_BT), cut(target.valid_BT), teacher
    )

  def _uncut(self, chunks, shape) -> jax.Array:
    flat = chunks.swapaxes(0, 1).reshape(self.shards, -1, shape[-1])
    tokens = shape[0] * shape[1] // self.shards
    return parallel.constrain(
      flat[:, :tokens].reshape(shape), self.mesh, "batch", "time", "width"
    )

  def _zero(self, inputs: HeadInputs) -> Sums:
    dtype = jnp.promote_types(inputs.hidden_BTD.dtype, jnp.float32)
    return cross_entropy.zero_sums(dtype)

  def _report(
    self, first: Sums, others: Sums | None, targets: Targets, coefficients_M
  ) -> tuple[jax.Array, OffsetSums]:
    """Joins the sums of all offsets, and weighs them."""
    sums: Any = jax.tree.map(lambda x: x[None], first)
    if others is not None:
      sums = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), sums, others)
    loss = jnp.sum(coefficients_M * sums.objective)
    return loss, OffsetSums(sums.nll, sums.correct, targets.counts_M)
