"""What a step reads and replaces, created where it will live."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from mtpjax import parallel
from mtpjax.heads import EVERYTHING, MultiTokenModel, Trained


class TrainState(struct.PyTreeNode):
  """Everything a checkpoint holds.

  Attributes:
    step: completed optimizer steps, int32.
    params: the parts that learn: {"lm": ..., "heads": ...}, or {"heads": ...}
      on a frozen base.
    opt_state: the state of the optax transformation.
  """

  step: jax.Array
  params: Any
  opt_state: Any


def _init_boxed(
  model: MultiTokenModel,
  optimizer: optax.GradientTransformation,
  key: jax.Array,
  given: Mapping[str, Any] | None,
  trained: Trained,
) -> TrainState:
  params = trained.of(model.init_boxed(key, given))
  # optax maps over the boxes, so that its moments inherit their names.
  return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))


def abstract_state(
  model: MultiTokenModel,
  optimizer: optax.GradientTransformation,
  trained: Trained = EVERYTHING,
) -> TrainState:
  """Returns shapes, dtypes and shardings of the state, for a restore.

  Args:
    model: the model.
    optimizer: from `make_optimizer`.
    trained: the parts that learn; others are no part of the state.

  Returns:
    The state of `jax.ShapeDtypeStruct`.
  """
  boxes = jax.eval_shape(
    lambda key: _init_boxed(model, optimizer, key, None, trained),
    jax.random.key(0),
  )
  return parallel.abstract_arrays(boxes, model.mesh)


def create_state(
  model: MultiTokenModel,
  optimizer: optax.GradientTransformation,
  key: jax.Array,
  given: Mapping[str, Any] | None = None,
  trained: Trained = EVERYTHING,
) -> TrainState:
  """Initialises the state, sharded from the start.

  Args:
    model: the model.
    optimizer: from `make_optimizer`.
    key: a PRNG key.
    given: pretrained parts, such as "lm"; the others are new.
    trained: the parts that learn; others are no part of the state.

  Returns:
    The state of step 0.
  """
  return _initialiser(model, optimizer, trained)(key, given)


@functools.lru_cache(maxsize=8)
def _initialiser(
  model: MultiTokenModel,
  optimizer: optax.GradientTransformation,
  trained: Trained,
) -> Callable[[jax.Array, Any], TrainState]:
  shardings = jax.tree.map(
    lambda leaf: leaf.sharding, abstract_state(model, optimizer, trained)
  )

  def init(key: jax.Array, given: Any) -> TrainState:
    return parallel.unbox(_init_boxed(model, optimizer, key, given, trained))

  return jax.jit(init, out_shardings=shardings)
