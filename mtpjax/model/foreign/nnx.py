"""A Flax NNX module as a trunk."""

from collections.abc import Callable, Mapping
from typing import Any

import jax

from mtpjax.errors import UserError
from mtpjax.model.foreign.description import AxesOf, ForeignModule, default_axes
from mtpjax.model.foreign.paths import place_of_unembedding, split


def nnx_module(
  make: Callable[[Any], Any],
  final_norm: str,
  unembedding: str = "",
  embedding: str = "",
  method: str = "__call__",
  axes: AxesOf = default_axes,
) -> ForeignModule:
  """Describes a Flax NNX module.

  Args:
    make: from `nnx.Rngs` to the module.
    final_norm: path of the final norm, as "decoder/norm"; a list counts by
      number, as "norms/0".
    unembedding: see `linen_module`.
    embedding: see `linen_module`.
    method: see `linen_module`.
    axes: see `linen_module`.

  Returns:
    The description.

  Raises:
    UserError: not exactly one of `unembedding` and `embedding`, no final norm
      there, or variables that are neither parameters nor random keys.
  """
  from flax import nnx

  def make_parts(key):
    return nnx.split(make(nnx.Rngs(key)), nnx.Param, nnx.RngState, ...)

  path = split(final_norm)
  unembedding_path, is_embedding = place_of_unembedding(unembedding, embedding)
  graph, shapes, keys, others = nnx.eval_shape(make_parts, jax.random.key(0))
  strange = ["/".join(map(str, path)) for path, _ in nnx.to_flat_state(others)]
  if strange:
    raise UserError(
      f"module: its {strange[0]} is neither a parameter nor a random key; only "
      "pure modules can be a trunk"
    )
  if jax.tree.leaves(keys):
    # For dropout, which `eval` turns off; compiled, so that no parameters of
    # perhaps many gigabytes are made beside them.
    keys = jax.jit(lambda key: make_parts(key)[2])(jax.random.key(0))
  norm_graph, norm_shapes = nnx.split(
    find(nnx.eval_shape(lambda: make(nnx.Rngs(0))), path), nnx.Param
  )

  def fill(shapes, params):
    # Pure dicts number the parts of lists; a checkpoint wants names.
    state = jax.tree.map(lambda leaf: leaf, shapes)
    numbered = renamed(nnx.to_pure_dict(shapes), params)
    nnx.replace_by_pure_dict(state, numbered)
    return state

  def init(key, tokens_BT, positions_BT, allowed_B1TT):
    del tokens_BT, positions_BT, allowed_B1TT
    return named(nnx.to_pure_dict(make_parts(key)[1]))

  def run(params, *inputs):
    # Copied, since modules write to their variables.
    module = nnx.merge(
      graph, fill(shapes, params), jax.tree.map(lambda leaf: leaf, keys)
    )
    module.eval()
    return getattr(module, method)(*inputs)

  def norm(params, x):
    return nnx.merge(norm_graph, fill(norm_shapes, params))(x)

  return ForeignModule(
    init, run, norm, path, unembedding_path, is_embedding, axes
  )


def find(module: Any, path: tuple[str, ...]) -> Any:
  """Returns a part of an NNX module."""
  for name in path:
    try:
      module = module[int(name)] if name.isdigit() else getattr(module, name)
    except (AttributeError, IndexError) as error:
      raise UserError(
        f"final_norm {'/'.join(path)}: the module has no {name!r} there"
      ) from error
  return module


def named(tree: Any) -> Any:
  """Returns nested dicts whose keys are all strings."""
  if not isinstance(tree, Mapping):
    return tree
  return {str(name): named(value) for name, value in tree.items()}


def renamed(like: Any, named: Any) -> Any:
  """Undoes `_named`."""
  if not isinstance(like, Mapping):
    return named
  return {name: renamed(like[name], named[str(name)]) for name in like}
