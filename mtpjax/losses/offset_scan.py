"""The scan over offsets around the scan over chunks of tokens.

One device holds the logits of one chunk of one offset at a time. Gradients of
the unembedding, the tap and the shared parameters are carried along; those of
a head's own parameters are what the scan over heads puts out.
"""

from typing import Any

import jax
import jax.numpy as jnp

from mtpjax import parallel
from mtpjax.losses import cross_entropy
from mtpjax.losses.cross_entropy import Chunk, Sums
from mtpjax.losses.inputs import Head, HeadInputs, OffsetSums
from mtpjax.losses.targets import Targets
from mtpjax.model import gradient_probe


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
  ):
    """Fixes what is not an array; see `multi_offset_loss`."""
    self.head = head
    self.mesh = mesh
    self.shards = parallel.batch_shards(mesh)
    self.chunk_tokens = chunk_tokens
    self.z_loss = z_loss
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

    def one(hidden_BTD, ids_BT, valid_BT):
      def add(sums, chunk):
        return sums + cross_entropy.chunk_sums(
          chunk, inputs.unembedding_DV, self.z_loss
        ), None

      chunks = self._cut(hidden_BTD, ids_BT, valid_BT)
      return jax.lax.scan(add, self._zero(inputs), chunks)[0]

    def body(_, xs):
      params, ids_BT, valid_BT = xs
      hidden_BTD = self.head(params, inputs.shared, inputs.tap_BTD, context)
      return None, one(hidden_BTD, ids_BT, valid_BT)

    ids_MBT, valid_MBT = targets.ids_MBT, targets.valid_MBT
    first = one(inputs.hidden_BTD, ids_MBT[0], valid_MBT[0])
    others = None
    if ids_MBT.shape[0] > 1:
      _, others = jax.lax.scan(
        body, None, (inputs.head_params, ids_MBT[1:], valid_MBT[1:])
      )
    return self._report(first, others, targets, coefficients_M)

  def _loss_and_gradients(self, inputs, targets, coefficients_M, context):
    """Forward and backward of each head in turn; fig. 2 of the paper."""
    wide = self._zero(inputs).nll.dtype

    def one(dunembedding_GDV, hidden_BTD, ids_BT, valid_BT, coefficient):
      def add(carry, chunk):
        sums, dunembedding_GDV = carry
        more, dhidden, d = cross_entropy.chunk_gradients(
          chunk, inputs.unembedding_DV, coefficient, self.z_loss
        )
        return (sums + more, dunembedding_GDV + d), dhidden

      chunks = self._cut(hidden_BTD, ids_BT, valid_BT)
      (sums, dunembedding_GDV), dhidden = jax.lax.scan(
        add, (self._zero(inputs), dunembedding_GDV), chunks
      )
      return dunembedding_GDV, sums, self._uncut(dhidden, hidden_BTD.shape)

    def body(carry, xs):
      dunembedding_GDV, dtap_BTD, dshared = carry
      params, ids_BT, valid_BT, coefficient, probe = xs

      def whole_head(params, shared, tap_BTD, probe):
        tap_BTD = gradient_probe(tap_BTD, probe)
        return self.head(params, shared, tap_BTD, context)

      hidden_BTD, pull_back = jax.vjp(
        whole_head, params, inputs.shared, inputs.tap_BTD, probe
      )
      dunembedding_GDV, sums, dhidden_BTD = one(
        dunembedding_GDV, hidden_BTD, ids_BT, valid_BT, coefficient
      )
      dparams, dshared_m, dtap_m, dprobe = pull_back(dhidden_BTD)
      dshared = jax.tree.map(jnp.add, dshared, dshared_m)
      carry = dunembedding_GDV, dtap_BTD + dtap_m, dshared
      return carry, (sums, dparams, dprobe)

    ids_MBT, valid_MBT = targets.ids_MBT, targets.valid_MBT
    dunembedding_GDV, first, dhidden_BTD = one(
      parallel.constrain(
        jnp.zeros(inputs.unembedding_DV.shape, wide),
        self.mesh, "batch", "width", "vocab",
      ),
      inputs.hidden_BTD, ids_MBT[0], valid_MBT[0], coefficients_M[0],
    )  # fmt: skip
    carry = (
      dunembedding_GDV,
      jnp.zeros(inputs.tap_BTD.shape, wide),
      jax.tree.map(
        lambda x: jnp.zeros(x.shape, jnp.promote_types(x.dtype, wide)),
        inputs.shared,
      ),
    )
    # Zero where there is no head; also for heads no target is given for.
    others = None
    dhead_params, dprobes = jax.tree.map(
      jnp.zeros_like, (inputs.head_params, inputs.probes)
    )
    if ids_MBT.shape[0] > 1:
      carry, (others, dhead_params, dprobes) = jax.lax.scan(
        body,
        carry,
        (
          inputs.head_params, ids_MBT[1:], valid_MBT[1:], coefficients_M[1:],
          inputs.probes,
        ),
      )  # fmt: skip
    dunembedding_GDV, dtap_BTD, dshared = carry
    gradients = HeadInputs(
      head_params=dhead_params,
      shared=dshared,
      hidden_BTD=dhidden_BTD,
      tap_BTD=dtap_BTD,
      unembedding_DV=dunembedding_GDV,
      probes=dprobes,
    )
    gradients = jax.tree.map(lambda g, x: g.astype(x.dtype), gradients, inputs)
    return self._report(first, others, targets, coefficients_M), gradients

  def _scale(self, gradients, cotangents):
    cotangent, _ = cotangents
    scaled = jax.tree.map(lambda g: g * cotangent.astype(g.dtype), gradients)
    # A probe holds a squared norm, so it scales with the square.
    probes = gradients.probes * jnp.square(cotangent)
    return scaled.replace(probes=probes), None, None, None

  def _cut(self, hidden_BTD, ids_BT, valid_BT) -> Chunk:
    """Cuts the tokens of each shard into chunks, stacked on axis 0."""
    g = self.shards
    tokens = ids_BT.size // g
    size = min(self.chunk_tokens, tokens)
    n = -(-tokens // size)

    def cut(x):
      x = x.reshape(g, tokens, *x.shape[2:])
      pad = [(0, 0), (0, n * size - tokens)] + [(0, 0)] * (x.ndim - 2)
      x = jnp.pad(x, pad).reshape(g, n, size, *x.shape[2:]).swapaxes(0, 1)
      return parallel.constrain(
        x, self.mesh, None, "batch", *(None,) * (x.ndim - 2)
      )

    return Chunk(cut(hidden_BTD), cut(ids_BT), cut(valid_BT))

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
