"""The multi-offset loss of a whole model on packed rows."""

from typing import Any

import jax
import jax.numpy as jnp

from mtpjax import config as config_lib
from mtpjax.heads import HeadContext, MultiTokenModel
from mtpjax.losses.inputs import (
  Head,
  HeadInputs,
  OffsetSums,
  split_unembeddings,
)
from mtpjax.losses.multi_offset import multi_offset_loss
from mtpjax.losses.targets import Targets, look_ahead, shift_targets
from mtpjax.model import masks, unembed


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
  only_heads: bool = False,
) -> tuple[jax.Array, OffsetSums]:
  """Runs the trunk and all heads.

  Args:
    model: the model.
    loss: mode, chunk size, z-loss, and what the extra heads learn.
    params: {"lm": ..., "heads": ...}.
    probes_M: zeros, float32; their gradients are the squared norms of the
      gradients that the offsets send to the tap; of sequential heads, to the
      state that the head reads, together with the heads after it.
    batch: `tokens`, `segments` and `positions`, each [B, T]; with `hidden`
      [B, T, D], the tapped states of these rows, the trunk is not run.
    targets: of the same rows.
    coefficients_M: weight / count of the whole batch.
    only_heads: see `multi_offset_loss`.

  Returns:
    The loss, and sums per offset for reading.
  """
  trunk, lm = model.trunk, params["lm"]
  context = HeadContext(batch["positions"], masks.packed(batch["segments"]))
  if "hidden" in batch:
    tap_BTD = hidden_BTD = batch["hidden"]
  else:
    out = model.apply_trunk(
      lm,
      batch["tokens"],
      batch["positions"],
      context.mask,
      tap_probe=None if only_heads else probes_M[0],
    )
    tap_BTD, hidden_BTD = out.tap_BTD, out.hidden_BTD
  if "hidden" not in batch or not model.heads.tapped.is_normed:
    hidden_BTD = trunk.final_norm(lm["final_norm"], hidden_BTD)
  unembedding_DV = trunk.unembedding(lm)
  if loss.targets == "teacher_soft":
    targets = targets.replace(teacher_BTD=hidden_BTD)
  elif loss.targets == "teacher_argmax":
    best_BT = most_likely(hidden_BTD, unembedding_DV, loss.chunk_tokens)
    # What the model says of the token m ahead it says one before it.
    others = [look_ahead(best_BT, m - 1) for m in model.heads.offsets[1:]]
    targets = targets.replace(ids_MBT=jnp.stack([targets.ids_MBT[0], *others]))
  head_params, own_MDV = split_unembeddings(params.get("heads"))
  per_offset, probes_M = head_params, probes_M[1:]
  head: Head = model.apply_head
  if head_params is not None:
    before = lm, tap_BTD
    if only_heads:
      before = jax.lax.stop_gradient(before)
    stack = model.wiring.stack(
      model, {"lm": before[0], "heads": head_params}, before[1],
      batch["tokens"], context, probes_M,
    )  # fmt: skip
    per_offset, probes_M, head = stack
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
    only_heads=only_heads,
  )


def most_likely(
  hidden_BTD: jax.Array, unembedding_DV: jax.Array, chunk_tokens: int
) -> jax.Array:
  """Returns the model's own next token at every position, without gradient.

  Args:
    hidden_BTD: states ready for the unembedding.
    unembedding_DV: the unembedding.
    chunk_tokens: positions of a row whose logits are alive at a time.

  Returns:
    Ids [B, T].
  """
  b, t, d = hidden_BTD.shape
  size = min(chunk_tokens, t)
  n = -(-t // size)
  padded_BTD = jnp.pad(hidden_BTD, ((0, 0), (0, n * size - t), (0, 0)))
  chunks_NBCD = padded_BTD.reshape(b, n, size, d).swapaxes(0, 1)
  ids_NBC = jax.lax.map(
    lambda x_BCD: jnp.argmax(unembed(x_BCD, unembedding_DV), axis=-1),
    jax.lax.stop_gradient(chunks_NBCD),
  )
  return ids_NBC.swapaxes(0, 1).reshape(b, n * size)[:, :t]
