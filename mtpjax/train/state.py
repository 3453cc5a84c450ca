"""What a step reads and replaces, created where it will live."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from mtpjax import parallel
from mtpjax.heads import MultiTokenModel


class TrainState(struct.PyTreeNode):
  """Everything a checkpoint holds.

  Attributes:
    step: completed optimizer steps, int32.
    params: {"lm": ..., "heads": ...}.
    opt_state: the state of the optax transformation.
  """

  step: jax.Array
  params: Any
  opt_state: Any


def _init_boxed(
  model: MultiTokenModel, optimizer: optax.GradientTransformation, key
) -> TrainState:
  params = model.init_boxed(key)
  # optax maps over the boxes, so that its moments inherit their names.
  return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))


def abstract_state(
  model: MultiTokenModel, optimizer: optax.GradientTransformation
) -> TrainState:
  """Returns shapes, dtypes and shardings of the state, for a restore."""
  boxes = jax.eval_shape(
    lambda key: _init_boxed(model, optimizer, key), jax.random.key(0)
  )
  return parallel.abstract_arrays(boxes, model.mesh)


def create_state(
  model: MultiTokenModel,
  optimizer: optax.GradientTransformation,
  key: jax.Array,
) -> TrainState:
  """Initialises the state, sharded from the start."""
  shardings = jax.tree.map(
    lambda leaf: leaf.sharding, abstract_state(model, optimizer)
  )
  return jax.jit(
    lambda key: parallel.unbox(_init_boxed(model, optimizer, key)),
    out_shardings=shardings,
  )(key)
