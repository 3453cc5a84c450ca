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
    params: what is trained: {"lm": ..., "heads": ...}, or {"heads": ...} on a
      frozen base.
    opt_state: the state of the optax transformation.
  """

  step: jax.Array
  params: Any
  opt_state: Any


def _init_boxed(
  model: MultiTokenModel,
  optimizer: optax.GradientTransformation,
  key: jax.Array,
  lm: Any,
  only_heads: bool,
) -> TrainState:
  params = model.init_boxed(key, lm)
  if only_heads:
    params = {"heads": params["heads"]}
  # optax maps over the boxes, so that its moments inherit their names.
  return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))


def abstract_state(
  model: MultiTokenModel,
  optimizer: optax.GradientTransformation,
  only_heads: bool = False,
) -> TrainState:
  """Returns shapes, dtypes and shardings of the state, for a restore.

  Args:
    model: the model.
    optimizer: from `make_optimizer`.
    only_heads: the model itself is frozen, and no part of the state.

  Returns:
    The state of `jax.ShapeDtypeStruct`.
  """
  boxes = jax.eval_shape(
    lambda key: _init_boxed(model, optimizer, key, None, only_heads),
    jax.random.key(0),
  )
  return parallel.abstract_arrays(boxes, model.mesh)


def create_state(
  model: MultiTokenModel,
  optimizer: optax.GradientTransformation,
  key: jax.Array,
  lm: Any = None,
  only_heads: bool = False,
) -> TrainState:
  """Initialises the state, sharded from the start.

  Args:
    model: the model.
    optimizer: from `make_optimizer`.
    key: a PRNG key.
    lm: parameters of a pretrained model; None makes new ones.
    only_heads: the model is frozen, and no part of the state.

  Returns:
    The state of step 0.
  """
  shardings = jax.tree.map(
    lambda leaf: leaf.sharding, abstract_state(model, optimizer, only_heads)
  )

  def init(key: jax.Array, lm: Any) -> TrainState:
    return parallel.unbox(_init_boxed(model, optimizer, key, lm, only_heads))

  return jax.jit(init, out_shardings=shardings)(key, lm)
