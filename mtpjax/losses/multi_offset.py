"""The multi-offset loss: peak memory does not grow with the number of heads.

Gloeckle et al. 2024, section 2 (fig. 2) run each head forward and backward in
turn, so that the logits of one head at a time are alive. Here that is a scan
over heads around a scan over chunks of tokens, in one of these modes:

  fused     gradients are computed in the forward pass and scaled by the
            cotangent in the backward pass; nothing is recomputed
  remat     logits and heads are recomputed in the backward pass
  unrolled  the ordinary loss with all logits alive, for comparison

Axes: M offsets, of which the first is the next-token model's own output; G
shards of the batch; see `cross_entropy` for the others.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from mtpjax import parallel
from mtpjax.errors import UserError
from mtpjax.losses import cross_entropy
from mtpjax.losses.cross_entropy import Chunk, Sums
from mtpjax.losses.targets import Targets
from mtpjax.model import gradient_probe

Head = Callable[[Any, Any, jax.Array, Any], jax.Array]


class HeadInputs(struct.PyTreeNode):
  """Everything the loss has gradients for.

  Attributes:
    head_params: parameters of the extra heads, stacked [M - 1, ...]; None for
      none.
    shared: parameters that all heads use, passed to each of them.
    hidden_BTD: offset 1's hidden states, ready for the unembedding.
    tap_BTD: hidden states the extra heads read.
    unembedding_DV: the unembedding all offsets share.
    probes: float [M - 1]; their gradients are the squared norms of the
      gradients that the extra heads send to the tap.
  """

  head_params: Any
  shared: Any
  hidden_BTD: jax.Array
  tap_BTD: jax.Array
  unembedding_DV: jax.Array
  probes: jax.Array


class OffsetSums(struct.PyTreeNode):
  """What each offset did, for reading; without gradients.

  Attributes:
    nll_M: summed negative log-likelihood, nats.
    correct_M: targets that were the arg max.
    count_M: valid targets.
  """

  nll_M: jax.Array
  correct_M: jax.Array
  count_M: jax.Array

  def __add__(self, other: "OffsetSums") -> "OffsetSums":
    return jax.tree.map(jnp.add, self, other)


def offset_coefficients(
  counts_M: jax.Array, weights: tuple[float, ...]
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
  weights_M = jnp.asarray(weights or (1.0,) * counts_M.shape[0], jnp.float32)
  return jnp.where(counts_M > 0, weights_M / jnp.maximum(counts_M, 1), 0.0)


def multi_offset_loss(
  head: Head,
  inputs: HeadInputs,
  targets: Targets,
  coefficients_M: jax.Array,
  context: Any = None,
  *,
  mesh: jax.sharding.Mesh | None = None,
  mode: str = "fused",
  chunk_tokens: int = 1024,
  z_loss: float = 0.0,
) -> tuple[jax.Array, OffsetSums]:
  """Computes sum over offsets of coefficient * summed cross-entropy.

  Args:
    head: (params of one head, shared, tap_BTD, context) -> hidden states
      [B, T, D] ready for the unembedding.
    inputs: parameters and hidden states.
    targets: from `shift_targets`, M offsets.
    coefficients_M: from `offset_coefficients`.
    context: passed to `head`; it gets no gradient.
    mesh: the mesh the batch is cut over; None for one device.
    mode: "fused", "remat" or "unrolled".
    chunk_tokens: tokens per shard whose logits are alive at a time.
    z_loss: coefficient of the squared log-normaliser (Chowdhery et al. 2022).

  Returns:
    The scalar loss, in at least float32, and the `OffsetSums`.

  Raises:
    UserError: the rows of the batch do not divide over the shards.
  """
  mesh = parallel.single_device_mesh() if mesh is None else mesh
  parallel.check_batch(inputs.hidden_BTD.shape[0], mesh, "batch")
  if mode == "unrolled":
    return _unrolled(head, inputs, targets, coefficients_M, context, z_loss)
  if mode not in ("fused", "remat"):
    raise UserError(f"loss.mode: {mode!r} is not fused, remat or unrolled")
  # One copy of the unembedding per shard, gathered once; the transpose of
  # this broadcast is the one sum of its gradient over the shards.
  shards = parallel.batch_shards(mesh)
  unembedding_DV = inputs.unembedding_DV
  unembedding_GDV = parallel.constrain(
    jnp.broadcast_to(unembedding_DV, (shards, *unembedding_DV.shape)),
    mesh, "batch", "width", "vocab",
  )  # fmt: skip
  scan = _OffsetScan(head, mesh, chunk_tokens, z_loss)
  run = scan.fused if mode == "fused" else scan.remat
  return run(
    inputs.replace(unembedding_DV=unembedding_GDV),
    targets,
    coefficients_M,
    context,
  )


def _unrolled(head, inputs, targets, coefficients_M, context, z_loss):
  hidden_states = [inputs.hidden_BTD]
  for m in range(targets.ids_MBT.shape[0] - 1):
    params = jax.tree.map(lambda leaf, m=m: leaf[m], inputs.head_params)
    tap_BTD = gradient_probe(inputs.tap_BTD, inputs.probes[m])
    hidden_states.append(head(params, inputs.shared, tap_BTD, context))
  loss, per_offset = 0.0, []
  for m, hidden_BTD in enumerate(hidden_states):
    logits_BTV = jnp.einsum(
      "btd,dv->btv",
      hidden_BTD,
      inputs.unembedding_DV.astype(hidden_BTD.dtype),
      preferred_element_type=jnp.promote_types(hidden_BTD.dtype, jnp.float32),
    )
    ids_BT, valid_BT = targets.ids_MBT[m], targets.valid_MBT[m]
    lse_BT = jax.nn.logsumexp(logits_BTV, axis=-1)
    nll_BT = lse_BT - jnp.take_along_axis(
      logits_BTV, ids_BT[..., None], axis=-1
    ).squeeze(-1)
    nll_BT = jnp.where(valid_BT, nll_BT, 0)
    penalty_BT = jnp.where(valid_BT, z_loss * jnp.square(lse_BT), 0)
    correct_BT = (jnp.argmax(logits_BTV, axis=-1) == ids_BT) & valid_BT
    loss += coefficients_M[m] * jnp.sum(nll_BT + penalty_BT)
    per_offset.append((jnp.sum(nll_BT), jnp.sum(correct_BT)))
  nll_M, correct_M = map(jnp.stack, zip(*per_offset, strict=True))
  sums = OffsetSums(nll_M, correct_M.astype(nll_M.dtype), targets.counts_M)
  return loss, jax.lax.stop_gradient(sums)


class _OffsetScan:
  """The scans over heads and chunks; `inputs` holds unembedding_GDV."""

  def __init__(self, head, mesh, chunk_tokens, z_loss):
    self.head = head
    self.mesh = mesh
    self.shards = parallel.batch_shards(mesh)
    self.chunk_tokens = chunk_tokens
    self.z_loss = z_loss
    self.fused = jax.custom_vjp(self._sums_only)
    self.fused.defvjp(self._fused_forward, self._fused_backward)

  def remat(self, inputs, targets, coefficients_M, context):
    """Recomputes heads and logits in the backward pass."""

    # Wide, so that its gradient is summed over chunks and heads in float32.
    unembedding_GDV = inputs.unembedding_DV.astype(self._zero(inputs).nll.dtype)

    def whole_head(params, tap_BTD, probe):
      tap_BTD = gradient_probe(tap_BTD, probe)
      return self.head(params, inputs.shared, tap_BTD, context)

    def one(hidden_BTD, ids_BT, valid_BT, coefficient):
      chunks = self._cut(hidden_BTD, ids_BT, valid_BT)

      def add(sums, chunk):
        return sums + cross_entropy.chunk_loss(
          chunk, unembedding_GDV, self.z_loss
        ), None

      sums, _ = jax.lax.scan(add, self._zero(inputs), chunks)
      return coefficient * sums.objective, sums

    def run(params, ids_BT, valid_BT, coefficient, probe):
      hidden_BTD = whole_head(params, inputs.tap_BTD, probe)
      return one(hidden_BTD, ids_BT, valid_BT, coefficient)

    return self._over_offsets(
      inputs, targets, coefficients_M, one, jax.checkpoint(run)
    )

  def _sums_only(self, inputs, targets, coefficients_M, context):
    """The loss where nobody asks for gradients: evaluation."""

    def one(hidden_BTD, ids_BT, valid_BT, coefficient):
      def add(sums, chunk):
        return sums + cross_entropy.chunk_sums(
          chunk, inputs.unembedding_DV, self.z_loss
        ), None

      chunks = self._cut(hidden_BTD, ids_BT, valid_BT)
      sums, _ = jax.lax.scan(add, self._zero(inputs), chunks)
      return coefficient * sums.objective, sums

    def run(params, ids_BT, valid_BT, coefficient, probe):
      del probe
      hidden_BTD = self.head(params, inputs.shared, inputs.tap_BTD, context)
      return one(hidden_BTD, ids_BT, valid_BT, coefficient)

    return self._over_offsets(inputs, targets, coefficients_M, one, run)

  def _over_offsets(self, inputs, targets, coefficients_M, one, run):
    """Adds up offset 1, which has no head, and a scan over the others."""
    loss, sums = one(
      inputs.hidden_BTD, targets.ids_MBT[0], targets.valid_MBT[0],
      coefficients_M[0],
    )  # fmt: skip
    first = jax.tree.map(lambda x: x[None], sums)
    if targets.ids_MBT.shape[0] == 1:
      return loss, self._report(first, targets)

    def body(loss, xs):
      head_loss, sums = run(*xs)
      return loss + head_loss, sums

    loss, others = jax.lax.scan(
      body,
      loss,
      (
        inputs.head_params,
        targets.ids_MBT[1:],
        targets.valid_MBT[1:],
        coefficients_M[1:],
        inputs.probes,
      ),
    )
    return loss, self._report(_join(first, others), targets)

  def _fused_forward(self, inputs, targets, coefficients_M, context):
    """Computes loss and gradients in one go; see fig. 2 of the paper."""
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
      dhidden_BTD = self._uncut(dhidden, hidden_BTD.shape)
      return dunembedding_GDV, sums, dhidden_BTD

    dunembedding_GDV = parallel.constrain(
      jnp.zeros(inputs.unembedding_DV.shape, wide),
      self.mesh, "batch", "width", "vocab",
    )  # fmt: skip
    dunembedding_GDV, sums, dhidden_BTD = one(
      dunembedding_GDV, inputs.hidden_BTD, targets.ids_MBT[0],
      targets.valid_MBT[0], coefficients_M[0],
    )  # fmt: skip
    loss = coefficients_M[0] * sums.objective
    sums = jax.tree.map(lambda x: x[None], sums)
    dshared = jax.tree.map(jnp.zeros_like, inputs.shared)
    dtap_BTD = jnp.zeros(inputs.tap_BTD.shape, wide)
    # Zero where there is no head; also for heads no target is given for.
    dhead_params, dprobes = jax.tree.map(
      jnp.zeros_like, (inputs.head_params, inputs.probes)
    )

    if targets.ids_MBT.shape[0] > 1:

      def body(carry, xs):
        loss, dunembedding_GDV, dtap_BTD, dshared = carry
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
        carry = (
          loss + coefficient * sums.objective,
          dunembedding_GDV,
          dtap_BTD + dtap_m,
          jax.tree.map(jnp.add, dshared, dshared_m),
        )
        return carry, (sums, dparams, dprobe)

      carry, (others, dhead_params, dprobes) = jax.lax.scan(
        body,
        (loss, dunembedding_GDV, dtap_BTD, dshared),
        (
          inputs.head_params,
          targets.ids_MBT[1:],
          targets.valid_MBT[1:],
          coefficients_M[1:],
          inputs.probes,
        ),
      )
      loss, dunembedding_GDV, dtap_BTD, dshared = carry
      sums = _join(sums, others)

    gradients = HeadInputs(
      dhead_params, dshared, dhidden_BTD,
      dtap_BTD.astype(inputs.tap_BTD.dtype),
      dunembedding_GDV.astype(inputs.unembedding_DV.dtype), dprobes,
    )  # fmt: skip
    return (loss, self._report(sums, targets)), gradients

  def _fused_backward(self, gradients, cotangents):
    cotangent, _ = cotangents
    scaled = jax.tree.map(
      lambda g: g * cotangent.astype(g.dtype), gradients.replace(probes=None)
    )
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

  def _uncut(self, chunks, shape):
    flat = chunks.swapaxes(0, 1).reshape(self.shards, -1, shape[-1])
    tokens = shape[0] * shape[1] // self.shards
    return parallel.constrain(
      flat[:, :tokens].reshape(shape), self.mesh, "batch", "time", "width"
    )

  def _zero(self, inputs) -> Sums:
    dtype = jnp.promote_types(inputs.hidden_BTD.dtype, jnp.float32)
    return cross_entropy.zero_sums(dtype)

  def _report(self, sums, targets) -> OffsetSums:
    return jax.lax.stop_gradient(
      OffsetSums(sums.nll, sums.correct, targets.counts_M)
    )


def _join(first: Sums, others: Sums) -> Sums:
  return jax.tree.map(lambda a, b: jnp.concatenate([a, b]), first, others)
