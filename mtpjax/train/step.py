"""One optimizer step: a pure function, jitted, its state donated."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from mtpjax import config as config_lib
from mtpjax.heads import MultiTokenModel
from mtpjax.losses import (
  OffsetSums,
  batch_targets,
  model_loss,
  offset_coefficients,
)
from mtpjax.train.optimizer import clipped_norm, make_schedule
from mtpjax.train.state import TrainState

Batch = dict[str, jax.Array]


class StepMetrics(struct.PyTreeNode):
  """What one step did.

  Attributes:
    loss: the objective: weighted means over valid targets, summed over
      offsets, plus z-loss.
    sums: per offset; divide by `sums.count_M` for means.
    grad_norm: global norm of the gradient.
    clipped_grad_norm: the same after clipping.
    tap_grad_norm_M: norm of the gradient each offset sends to the tap.
    head_grad_norm_M: norm of the gradient of each head's own parameters; for
      offset 1 those of the last layer (0 where the model is frozen).
    learning_rate: the model's rate at this step; the heads' where only they
      learn.
    is_finite: loss and gradient are finite; otherwise the state was kept.
  """

  loss: jax.Array
  sums: OffsetSums
  grad_norm: jax.Array
  clipped_grad_norm: jax.Array
  tap_grad_norm_M: jax.Array
  head_grad_norm_M: jax.Array
  learning_rate: jax.Array
  is_finite: jax.Array


def _cut_batch(tree: Any, parts: int, axis: int) -> Any:
  """Moves every parts-th row to a part of its own, on a new first axis.

  Interleaved, so that each device's rows stay on the device.
  """

  def cut(x: jax.Array) -> jax.Array:
    shape = x.shape
    x = x.reshape(
      *shape[:axis], shape[axis] // parts, parts, *shape[axis + 1 :]
    )
    return jnp.moveaxis(x, axis + 1, 0)

  return jax.tree.map(cut, tree)


def _own_norms(grads: Any) -> jax.Array:
  layers = grads.get("lm", {}).get("layers", ())
  last_layer = jax.tree.map(lambda g: g[-1], layers)
  norms = [jnp.atleast_1d(jnp.asarray(optax.tree.norm(last_layer)))]
  if "heads" in grads:
    norms.append(jax.vmap(optax.tree.norm)(grads["heads"]))
  return jnp.concatenate(norms)


def loss_and_gradients(
  model: MultiTokenModel,
  loss: config_lib.Loss,
  accumulation: int,
  params: Any,
  batch: Batch,
  frozen: Any = None,
) -> tuple[jax.Array, OffsetSums, Any, jax.Array]:
  """Computes a step's loss and gradients, in as many parts as asked.

  Args:
    model: the model.
    loss: the loss.
    accumulation: parts the batch is run in; the result does not depend on it
      but for rounding.
    params: what is trained: {"lm": ..., "heads": ...}, or {"heads": ...}.
    batch: `tokens`, `segments`, `positions`, `loss_mask`, each [B, T]; see
      `model_loss` for `hidden`.
    frozen: {"lm": ...} where the model itself is not trained; it is run
      without keeping activations.

  Returns:
    Loss, sums per offset, gradients of the parameters, and per offset the norm
    of the gradient at the tap.
  """
  targets = batch_targets(batch, model.heads.offsets)
  coefficients_M = offset_coefficients(targets.counts_M, loss.weights)
  wide = jnp.promote_types(model.config.dtype, jnp.float32)
  probes_M = jnp.zeros(len(model.heads.offsets), wide)

  def part_loss(params, probes_M, rows, targets):
    return model_loss(
      model, loss, (frozen or {}) | params, probes_M, rows, targets,
      coefficients_M, only_heads=bool(frozen),
    )  # fmt: skip

  gradients = jax.value_and_grad(part_loss, argnums=(0, 1), has_aux=True)

  def run(part):
    (value, sums), grads = gradients(params, probes_M, *part)
    return value, sums, grads

  if accumulation == 1:
    value, sums, (grads, squared_M) = run((batch, targets))
  else:
    parts = (
      _cut_batch(batch, accumulation, axis=0),
      _cut_batch(targets, accumulation, axis=1),
    )
    first = run(jax.tree.map(lambda x: x[0], parts))
    total, _ = jax.lax.scan(
      lambda total, part: (jax.tree.map(jnp.add, total, run(part)), None),
      first,
      jax.tree.map(lambda x: x[1:], parts),
    )
    value, sums, (grads, squared_M) = total
  return value, sums, grads, jnp.sqrt(squared_M)


def make_train_step(
  model: MultiTokenModel,
  optimizer: optax.GradientTransformation,
  config: config_lib.Config,
  frozen: Any = None,
) -> Callable[[TrainState, Batch], tuple[TrainState, StepMetrics]]:
  """Builds the jitted step.

  Args:
    model: the model.
    optimizer: from `make_optimizer`.
    config: loss, clipping and accumulation are read from it.
    frozen: {"lm": ...} where only the heads are trained.

  Returns:
    (state, batch) -> (state, metrics). The state passed in is donated. Where
    loss or gradient are not finite the old state comes back.
  """
  schedule = make_schedule(config.optim, of_heads=bool(frozen))

  def train_step(state: TrainState, batch: Batch, frozen: Any):
    loss, sums, grads, tap_grad_norm_M = loss_and_gradients(
      model, config.loss, config.train.accumulation, state.params, batch, frozen
    )
    grad_norm = optax.tree.norm(grads)
    is_finite = jnp.isfinite(loss) & jnp.isfinite(grad_norm)
    updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
    new_state = TrainState(
      state.step + 1, optax.apply_updates(state.params, updates), opt_state
    )
    new_state = jax.tree.map(
      lambda new, old: jnp.where(is_finite, new, old), new_state, state
    )
    metrics = StepMetrics(
      loss=loss,
      sums=sums,
      grad_norm=grad_norm,
      clipped_grad_norm=clipped_norm(config.optim, grads),
      tap_grad_norm_M=tap_grad_norm_M,
      head_grad_norm_M=_own_norms(grads),
      learning_rate=jnp.asarray(schedule(state.step), jnp.float32),
      is_finite=is_finite,
    )
    return new_state, metrics

  jitted = jax.jit(train_step, donate_argnums=0)
  # An argument, not a constant of the program; and never donated.
  return lambda state, batch: jitted(state, batch, frozen)
