"""The multi-offset loss of a whole model on packed rows."""

from typing import Any

import jax

from mtpjax import config as config_lib
from mtpjax.heads import HeadContext, MultiTokenModel
from mtpjax.losses.inputs import HeadInputs, OffsetSums
from mtpjax.losses.multi_offset import multi_offset_loss
from mtpjax.losses.targets import Targets, shift_targets
from mtpjax.model import masks


def batch_targets(batch: dict[str, jax.Array], offsets: tuple[int, ...]):
  """Returns the `Targets` of a batch of packed rows; see `shift_targets`."""
  return shift_targets(
    batch["tokens"], batch["segments"], batch["loss_mask"], offsets
  )


def model_loss(
  model: MultiTokenModel,
  loss: config_lib.Loss,
  params: Any,
  probes_M: jax.Array,
  batch: dict[str, jax.Array],
  targets: Targets,
  coefficients_M: jax.Array,
) -> tuple[jax.Array, OffsetSums]:
  """Runs the trunk and all heads.

  Args:
    model: the model.
    loss: mode, chunk size and z-loss.
    params: {"lm": ..., "heads": ...}.
    probes_M: zeros, float32; their gradients are the squared norms of the
      gradients that the offsets send to the tap.
    batch: `tokens`, `segments` and `positions`, each [B, T].
    targets: of the same rows.
    coefficients_M: weight / count of the whole batch.

  Returns:
    The loss, and sums per offset for reading.
  """
  trunk, lm = model.trunk, params["lm"]
  context = HeadContext(batch["positions"], masks.packed(batch["segments"]))
  out = model.apply_trunk(
    lm,
    batch["tokens"],
    batch["positions"],
    context.mask,
    tap_probe=probes_M[0],
  )
  inputs = HeadInputs(
    head_params=params.get("heads"),
    shared=lm["final_norm"],
    hidden_BTD=trunk.final_norm(lm["final_norm"], out.hidden_BTD),
    tap_BTD=out.tap_BTD,
    unembedding_DV=trunk.unembedding(lm),
    probes=probes_M[1:],
  )
  return multi_offset_loss(
    model.apply_head,
    inputs,
    targets,
    coefficients_M,
    context,
    mesh=model.mesh,
    mode=loss.mode,
    chunk_tokens=loss.chunk_tokens,
    z_loss=loss.z_loss,
  )
