"""A Flax Linen module as a trunk."""

from typing import Any

import flax.linen as nn
import jax

from mtpjax.errors import UserError
from mtpjax.model.foreign.description import AxesOf, ForeignModule, default_axes
from mtpjax.model.foreign.paths import place_of_unembedding, split


def linen_module(
  module: nn.Module,
  norm: nn.Module,
  final_norm: str,
  unembedding: str = "",
  embedding: str = "",
  method: str = "__call__",
  axes: AxesOf = default_axes,
) -> ForeignModule:
  """Describes a Flax Linen module.

  Args:
    module: its `__call__` initialises all parameters, the final norm and the
      unembedding included; takes what `method` takes.
    norm: a module that applies the final norm to the parameters found there.
    final_norm: path of its parameters, as "decoder/norm".
    unembedding: path of the unembedding [D, V], as "head/kernel"; or
    embedding: path of the embedding [V, D], where the two are tied.
    method: the method that gives the hidden states before the final norm:
      (tokens_BT, positions_BT, allowed_B1TS, cache) -> [B, T, D] or a
      `TrunkOutput`, which names a tap before the last layer, and the keys and
      values of this pass, which decoding needs. `allowed_B1TS` are booleans:
      may the query read the key? With a cache (a tuple of a layer's `KeyValues`
      each, only read) its rows come before those of this pass.
    axes: (path, shape) -> logical names of the axes, which decide sharding and
      decay. Parameters that name them by `parallel.logical` keep those.

  Returns:
    The description.

  Raises:
    UserError: not exactly one of `unembedding` and `embedding`.
  """

  def init(key, tokens_BT, positions_BT, allowed_B1TT):
    variables = module.init(key, tokens_BT, positions_BT, allowed_B1TT, None)
    others = sorted(set(variables) - {"params"})
    if others:
      raise UserError(
        f"module {type(module).__name__}: has the collection {others[0]!r} "
        "beside its parameters; only pure modules can be a trunk"
      )
    return jax.tree.map(_keep_logical, variables["params"], is_leaf=_is_boxed)

  def run(params, *inputs):
    return module.apply({"params": params}, *inputs, method=method)

  def apply_norm(params, x):
    return norm.apply({"params": params}, x)

  return ForeignModule(
    init,
    run,
    apply_norm,
    split(final_norm),
    *place_of_unembedding(unembedding, embedding),
    axes,
  )


def _keep_logical(leaf: Any) -> Any:
  """Returns the bare value of Flax's own boxes, whose axes have other names."""
  if isinstance(leaf, nn.Partitioned):
    return leaf.unbox(apply_constraint=False)
  return leaf


def _is_boxed(leaf: Any) -> bool:
  return isinstance(leaf, nn.meta.AxisMetadata)
