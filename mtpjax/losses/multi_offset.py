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
from mtpjax.heads.parts import EVERYTHING, Trained
from mtpjax.losses.chunks import Cutter
from mtpjax.losses.inputs import Head, HeadInputs
from mtpjax.losses.offset_scan import OffsetScan, differentiable
from mtpjax.losses.one_offset import OneOffset
from mtpjax.losses.readout import OffsetSums, Readout
from mtpjax.losses.targets import Targets
from mtpjax.losses.unrolled import unrolled_loss


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
  trained: Trained = EVERYTHING,
  readouts: tuple[Readout, ...] = (),
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
    trained: which parts learn. Without "lm" that is nothing but the heads' own
      parameters and unembeddings: other gradients are neither computed nor
      kept, and are 0.
    readouts: what else to add up of the logits; see `OffsetSums.extra`.

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
  if mode not in ("fused", "remat", "unrolled"):
    raise UserError(f"loss.mode: {mode!r} is not fused, remat or unrolled")
  if mode == "unrolled":
    if "lm" not in trained:
      inputs = jax.lax.stop_gradient(inputs).replace(
        per_offset=inputs.per_offset,
        probes=inputs.probes,
        own_MDV=inputs.own_MDV,
      )
    return unrolled_loss(
      head, inputs, targets, coefficients_M, context, z_loss, readouts
    )
  # One copy of the unembedding per shard, gathered once; the transpose of
  # this broadcast is the one sum of its gradient over the shards.
  shards = parallel.batch_shards(mesh)
  unembedding_DV = inputs.unembedding_DV
  unembedding_GDV = parallel.constrain(
    jnp.broadcast_to(unembedding_DV, (shards, *unembedding_DV.shape)),
    mesh, "batch", "width", "vocab",
  )  # fmt: skip
  one = OneOffset(Cutter(mesh, chunk_tokens), z_loss, tuple(readouts))
  run = differentiable(OffsetScan(head, mesh, one, trained), mode)
  return run(
    inputs.replace(unembedding_DV=unembedding_GDV),
    targets,
    coefficients_M,
    context,
  )
