"""One optimizer step: a pure function, jitted, its state donated."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from mtpjax import config as config_lib
from mtpjax.heads import MultiTokenModel
from mtpjax.heads.parts import Trained
from mtpjax.losses import (
  Constant,
  OffsetSums,
  Readout,
  Schedule,
  batch_targets,
  model_loss,
  offset_coefficients,
)
from mtpjax.train.optimizer import clipped_norm, make_schedule
from mtpjax.train.state import TrainState

Batch = dict[str, jax.Array]
# What is minimised: takes what `model_loss` takes, and returns what it returns.
Objective = Callable[..., tuple[jax.Array, OffsetSums]]


# How the steps of a window become one value of a line: "mean" over steps, or
# the "last" step's. None is not reported.
def _averaged(over: str | None, **options: Any) -> Any:
  return dataclasses.field(metadata={"over": over}, **options)


class StepMetrics(struct.PyTreeNode):
  """What one step did. A field says how it is averaged, and so is reported.

  A name that ends in _M has one value per offset. Sums are divided by the
  valid targets of the window.

  Attributes:
    loss: the objective: weighted means over valid targets, summed over
      offsets, plus z-loss.
    sums: per offset; divide by `sums.count_M` for means.
    grad_norm: global norm of the gradient.
    clipped_grad_norm: the same after clipping.
    learning_rate: the model's rate at this step; the heads' where only they
      learn.
    tap_grad_norm_M: norm of the gradient each offset sends to the tap.
    head_grad_norm_M: norm of the gradient of each head's own parameters; for
      offset 1 those of the last layer (0 where the model is frozen).
    is_finite: loss and gradient are finite; otherwise the state was kept.
    weight_M: weights of the offsets; None where they are constant.
  """

  loss: jax.Array = _averaged(None)
  sums: OffsetSums = _averaged(None)
  grad_norm: jax.Array = _averaged("mean")
  clipped_grad_norm: jax.Array = _averaged("mean")
  learning_rate: jax.Array = _averaged("last")
  tap_grad_norm_M: jax.Array = _averaged("mean")
  head_grad_norm_M: jax.Array = _averaged("mean")
  is_finite: jax.Array = _averaged(None)
  weight_M: jax.Array | None = _averaged("mean", default=None)


def _cut_batch(batch: Batch, parts: int) -> Batch:
  """Moves every parts-th row to a part of its own, on a new first axis.

  Interleaved, so that each device's rows stay on the device.
  """
  return {
    name: jnp.moveaxis(x.reshape(-1, parts, *x.shape[1:]), 1, 0)
    for name, x in batch.items()
  }


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
  *,
  objective: Objective = model_loss,
  schedule: Schedule | None = None,
  step: Any = 0,
  readouts: tuple[Readout, ...] = (),
) -> tuple[jax.Array, OffsetSums, Any, jax.Array]:
  """Computes a step's loss and gradients, in as many parts as asked.

  Args:
    model: the model.
    loss: the loss.
    accumulation: parts the batch is run in; the result does not depend on it
      but for rounding.
    params: the parts that learn.
    batch: `tokens`, `segments`, `positions`, `loss_mask`, each [B, T]; see
      `model_loss` for `hidden`.
    frozen: the other parts; they are run without keeping activations.
    objective: what is minimised.
    schedule: weights and active offsets; None takes `loss.weights`.
    step: completed steps, for the schedule.
    readouts: see `multi_offset_loss`.

  Returns:
    Loss, sums per offset, gradients of the parameters, and per offset the norm
    of the gradient at the tap.
  """
  schedule = schedule or Constant(loss.weights)
  counts_M = batch_targets(batch, model.heads.offsets).counts_M
  coefficients_M = offset_coefficients(counts_M, schedule.weights(step))
  n_active = schedule.n_active(step)
  wide = jnp.promote_types(model.config.dtype, jnp.float32)
  probes_M = jnp.zeros(len(model.heads.offsets), wide)

  def part_loss(params, probes_M, rows):
    return objective(
      model, loss, (frozen or {}) | params, probes_M, rows, coefficients_M,
      Trained(tuple(params)), readouts=readouts, n_active=n_active,
    )  # fmt: skip

  gradients = jax.value_and_grad(part_loss, argnums=(0, 1), has_aux=True)

  def run(part):
    (value, sums), grads = gradients(params, probes_M, part)
    return value, sums, grads

  if accumulation == 1:
    value, sums, (grads, squared_M) = run(batch)
  else:
    parts = _cut_batch(batch, accumulation)
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
  *,
  objective: Objective = model_loss,
  schedule: Schedule | None = None,
  readouts: tuple[Readout, ...] = (),
) -> Callable[[TrainState, Batch], tuple[TrainState, StepMetrics]]:
  """Builds the jitted step.

  Args:
    model: the model.
    optimizer: from `make_optimizer`.
    config: loss, clipping and accumulation are read from it.
    frozen: the parts that do not learn.
    objective: what is minimised.
    schedule: weights and active offsets by step; None takes `loss.weights`.
    readouts: what else to report per target, by name. These three are values,
      hashable: steps made of equal ones share a compiled program.

  Returns:
    (state, batch) -> (state, metrics). The state passed in is donated. Where
    loss or gradient are not finite the old state comes back.
  """
  given = _Given(
    model, optimizer, config.optim, config.loss, config.train.accumulation,
    objective, schedule or Constant(config.loss.weights), readouts,
  )  # fmt: skip
  # Frozen parts are an argument, not a constant of the program; and never
  # donated.
  return lambda state, batch: train_step(given, state, batch, frozen)


@dataclasses.dataclass(frozen=True)
class _Given:
  """What a step is made of. Equal values share one compiled program."""

  model: MultiTokenModel
  optimizer: optax.GradientTransformation
  optim: config_lib.Optim
  loss: config_lib.Loss
  accumulation: int
  objective: Objective
  schedule: Schedule
  readouts: tuple[Readout, ...]


@functools.partial(jax.jit, static_argnames="given", donate_argnames="state")
def train_step(
  given: _Given, state: TrainState, batch: Batch, frozen: Any
) -> tuple[TrainState, StepMetrics]:
  """The step; see `make_train_step`."""
  optim = given.optim
  loss, sums, grads, tap_grad_norm_M = loss_and_gradients(
    given.model, given.loss, given.accumulation, state.params, batch, frozen,
    objective=given.objective, schedule=given.schedule, step=state.step,
    readouts=given.readouts,
  )  # fmt: skip
  grad_norm = optax.tree.norm(grads)
  is_finite = jnp.isfinite(loss) & jnp.isfinite(grad_norm)
  updates, opt_state = given.optimizer.update(
    grads, state.opt_state, state.params
  )
  new_state = TrainState(
    state.step + 1, optax.apply_updates(state.params, updates), opt_state
  )
  new_state = jax.tree.map(
    lambda new, old: jnp.where(is_finite, new, old), new_state, state
  )
  rate = make_schedule(optim, of_heads="lm" in (frozen or {}))
  weights = given.schedule.weights(state.step)
  metrics = StepMetrics(
    loss=loss,
    sums=sums,
    grad_norm=grad_norm,
    clipped_grad_norm=clipped_norm(optim, grads),
    tap_grad_norm_M=tap_grad_norm_M,
    head_grad_norm_M=_own_norms(grads),
    learning_rate=jnp.asarray(rate(state.step), jnp.float32),
    is_finite=is_finite,
    weight_M=weights if isinstance(weights, jax.Array) else None,
  )
  return new_state, metrics
