"""The multi-offset loss of a whole model on packed rows."""

from typing import Any

import jax

from mtpjax import config as config_lib
from mtpjax.heads import HeadContext, MultiTokenModel
from mtpjax.heads.parts import EVERYTHING, Trained
from mtpjax.losses.inputs import Head, HeadInputs, split_unembeddings
from mtpjax.losses.multi_offset import multi_offset_loss
from mtpjax.losses.readout import OffsetSums, Readout
from mtpjax.losses.targets import Source, Targets, shift_targets, target_of
from mtpjax.model import Placement


def batch_targets(
  batch: dict[str, jax.Array], offsets: tuple[int, ...]
) -> Targets:
  """Returns the labels of a batch of packed rows; see `shift_targets`."""
  return shift_targets(
    batch["tokens"], batch["segments"], batch["loss_mask"], offsets
  )


def model_loss(
  model: MultiTokenModel,
  loss: config_lib.Loss,
  params: Any,
  probes_M: jax.Array,
  batch: dict[str, jax.Array],
  coefficients_M: jax.Array,
  trained: Trained = EVERYTHING,
  *,
  readouts: tuple[Readout, ...] = (),
  n_active: jax.Array | None = None,
) -> tuple[jax.Array, OffsetSums]:
  """Runs the trunk and all heads.

  Args:
    model: the model.
    loss: mode, chunk size, z-loss, and what the extra heads learn.
    params: {"lm": ..., "heads": ...}.
    probes_M: zeros, float32; their gradients are the squared norms of the
      gradients that the offsets send to the tap; of sequential heads, to the
      state that the head reads, together with the heads after it.
    batch: `tokens`, `segments`, `positions` and `loss_mask`, each [B, T]; with
      `hidden` [B, T, D], the tapped states of these rows, the trunk is not
      run.
    coefficients_M: weight / count of the whole batch.
    trained: see `multi_offset_loss`.
    readouts: see `multi_offset_loss`.
    n_active: how many offsets, from the first on, are run and measured; None
      for all.

  Returns:
    The loss, and sums per offset for reading.
  """
  trunk, lm = model.trunk, params["lm"]
  placement = Placement.packed(batch["positions"], batch["segments"])
  context = HeadContext(placement)
  if "hidden" in batch:
    tap_BTD = hidden_BTD = batch["hidden"]
  else:
    out = model.apply_trunk(
      lm,
      batch["tokens"],
      placement,
      tap_probe=probes_M[0] if "lm" in trained else None,
    )
    tap_BTD, hidden_BTD = out.tap_BTD, out.hidden_BTD
  if "hidden" not in batch or not model.heads.tapped.is_normed:
    hidden_BTD = trunk.final_norm(lm["final_norm"], hidden_BTD)
  unembedding_DV = trunk.unembedding(lm)
  target = target_of(loss)
  targets = target.of(
    batch_targets(batch, model.heads.offsets),
    Source(hidden_BTD, unembedding_DV, batch, loss.chunk_tokens),
  )
  targets = targets.replace(extra=target).only_first(n_active)
  head_params, own_MDV = split_unembeddings(params.get("heads"))
  per_offset, probes_M = head_params, probes_M[1:]
  head: Head = model.apply_head
  if head_params is not None:
    before = lm, tap_BTD
    if "lm" not in trained:
      before = jax.lax.stop_gradient(before)
    per_offset, probes_M, head = model.wiring.stack(
      model, {"lm": before[0], "heads": head_params}, before[1],
      batch["tokens"], context, probes_M,
    )  # fmt: skip
  inputs = HeadInputs(
    per_offset=per_offset,
    shared=lm["final_norm"],
    hidden_BTD=hidden_BTD,
    tap_BTD=tap_BTD,
    unembedding_DV=unembedding_DV,
    probes=probes_M,
    own_MDV=own_MDV,
  )
  return multi_offset_loss(
    head,
    inputs,
    targets,
    coefficients_M,
    context,
    mesh=model.mesh,
    mode=loss.mode,
    chunk_tokens=loss.chunk_tokens,
    z_loss=loss.z_loss,
    trained=trained,
    readouts=readouts,
  )
