"""The multi-offset loss: peak memory does not grow with the number of heads.

Gloeckle et al. 2024, section 2 (fig. 2) run each head forward and backward in
turn, so that the logits of one head at a time are alive. Here that is a scan
over heads around a scan over chunks of tokens, in one of these modes:

  fused     gradients are computed in the forward pass and scaled by the
            cotangent in the backward pass; nothing is recomputed
  remat     the backward pass computes heads and logits anew, with gradients
  unrolled  the ordinary loss with all logits alive, for comparison

The batch is cut into G shards by an axis of its own, [G, ...], laid out over
`data` and `fsdp`: every product stays on its device, as in a `shard_map` over
the local tokens, while heads and vocabulary are partitioned as everywhere
else. The unembedding is broadcast to [G, D, V] once, outside both scans, and
the transpose of that is the one sum of its gradient over the devices.

Axes: M offsets, of which the first is the next-token model's own output; G
shards of the batch; see `cross_entropy` for the others.
"""

from typing import Any

import chex
import jax
import jax.numpy as jnp

from mtpjax import parallel
from mtpjax.errors import UserError
from mtpjax.losses.inputs import Head, HeadInputs, OffsetSums
from mtpjax.losses.offset_scan import OffsetScan
from mtpjax.losses.targets import Targets, look_ahead
from mtpjax.model import gradient_probe, unembed


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
  if weights:
    chex.assert_shape(counts_M, (len(weights),))
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
  only_heads: bool = False,
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
    only_heads: nothing but the heads' own parameters (and their unembeddings)
      is trained: other gradients are neither computed nor kept, and are 0.

  Returns:
    The scalar loss, in at least float32, and the `OffsetSums`.

  Raises:
    UserError: the rows of the batch do not divide over the shards.
    AssertionError: an array has another shape than its name says.
  """
  m, b, t = targets.ids_MBT.shape
  d = inputs.tap_BTD.shape[-1]
  chex.assert_shape([inputs.hidden_BTD, inputs.tap_BTD], (b, t, d))
  chex.assert_shape(inputs.unembedding_DV, (d, None))
  chex.assert_shape(coefficients_M, (m,))
  chex.assert_tree_shape_prefix(inputs.per_offset, inputs.probes.shape)
  mesh = parallel.single_device_mesh() if mesh is None else mesh
  parallel.check_batch(inputs.hidden_BTD.shape[0], mesh, "batch")
  if mode == "unrolled":
    if only_heads:
      inputs = jax.lax.stop_gradient(inputs).replace(
        per_offset=inputs.per_offset,
        probes=inputs.probes,
        own_MDV=inputs.own_MDV,
      )
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
  scan = OffsetScan(head, mesh, chunk_tokens, z_loss, only_heads)
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
    params = jax.tree.map(lambda leaf, m=m: leaf[m], inputs.per_offset)
    tap_BTD = gradient_probe(inputs.tap_BTD, inputs.probes[m])
    hidden_states.append(head(params, inputs.shared, tap_BTD, context))
  loss, per_offset = 0.0, []
  for m, hidden_BTD in enumerate(hidden_states):
    unembedding_DV = inputs.unembedding_DV
    if m > 0 and inputs.own_MDV is not None:
      unembedding_DV = inputs.own_MDV[m - 1]
    logits_BTV = unembed(hidden_BTD, unembedding_DV)
    ids_BT, valid_BT = targets.ids_MBT[m], targets.valid_MBT[m]
    lse_BT = jax.nn.logsumexp(logits_BTV, axis=-1)
    if m > 0 and targets.teacher_BTD is not None:
      teacher_BTD = look_ahead(targets.teacher_BTD, targets.offsets[m] - 1)
      teacher_BTV = jax.lax.stop_gradient(
        unembed(teacher_BTD, inputs.unembedding_DV)
      )
      ids_BT = jnp.argmax(teacher_BTV, axis=-1)
      target_BT = jnp.sum(
        jax.nn.softmax(teacher_BTV, axis=-1) * logits_BTV, axis=-1
      )
    else:
      target_BT = jnp.take_along_axis(
        logits_BTV, ids_BT[..., None], axis=-1
      ).squeeze(-1)
    nll_BT = lse_BT - target_BT
    nll_BT = jnp.where(valid_BT, nll_BT, 0)
    penalty_BT = jnp.where(valid_BT, z_loss * jnp.square(lse_BT), 0)
    correct_BT = (jnp.argmax(logits_BTV, axis=-1) == ids_BT) & valid_BT
    loss += coefficients_M[m] * jnp.sum(nll_BT + penalty_BT)
    per_offset.append((jnp.sum(nll_BT), jnp.sum(correct_BT)))
  nll_M, correct_M = map(jnp.stack, zip(*per_offset, strict=True))
  sums = OffsetSums(nll_M, correct_M.astype(nll_M.dtype), targets.counts_M)
  return loss, jax.lax.stop_gradient(sums)
