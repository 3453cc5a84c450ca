"""What is said of somebody else's module."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from mtpjax.model.attention import KeyValues
from mtpjax.model.foreign.paths import take, with_value, without
from mtpjax.model.trunk import TrunkOutput

Cache = tuple[KeyValues, ...] | None
AxesOf = Callable[[str, tuple[int, ...]], tuple[str, ...]]


def default_axes(path: str, shape: tuple[int, ...]) -> tuple[str, ...]:
  """Names the axes of a parameter of which only the shape is known.

  The longest axis of matrices is cut over `fsdp`; vectors are kept whole, and
  don't decay.

  Args:
    path: where the parameter is, as "layers/0/mlp/kernel".
    shape: its shape.

  Returns:
    Logical names, see `parallel.axes`.
  """
  del path
  if len(shape) < 2:
    return ("norm",) * len(shape)
  names = ["embed_out"] * len(shape)
  names[max(range(len(shape)), key=lambda axis: shape[axis])] = "embed"
  return tuple(names)


@dataclasses.dataclass(frozen=True, eq=False)
class ForeignModule:
  """A module of somebody else; make one with `linen_module` or `nnx_module`.

  Two descriptions are never equal: make one, and use it everywhere.

  Attributes:
    init: (key, tokens_BT, positions_BT, allowed_B1TT) -> parameters, nested
      dicts of arrays.
    run: (parameters, tokens_BT, positions_BT, allowed_B1TS, cache) -> hidden
      states before the final norm [B, T, D], or a `TrunkOutput`.
    norm: (parameters of the final norm, hidden) -> hidden.
    final_norm: path of the final norm's parameters.
    unembedding: path of the unembedding.
    is_embedding: the unembedding is an embedding [V, D], to be transposed.
    axes: names the axes of each parameter.
  """

  init: Callable[..., Any]
  run: Callable[..., jax.Array | TrunkOutput]
  norm: Callable[[Any, jax.Array], jax.Array]
  final_norm: tuple[str, ...]
  unembedding: tuple[str, ...]
  is_embedding: bool
  axes: AxesOf

  def pack(self, params: Any) -> dict[str, Any]:
    """Returns the module's own parameters as params["lm"].

    Args:
      params: nested dicts; those of a pretrained module, for instance.

    Returns:
      {"module": ..., "final_norm": ...}.

    Raises:
      UserError: there is no final norm or unembedding where they should be.
    """
    for what in ("final_norm", "unembedding"):
      take(params, getattr(self, what), what)
    return {
      "module": without(params, self.final_norm),
      "final_norm": take(params, self.final_norm, "final_norm"),
    }

  def unpack(self, lm_params: Any) -> dict[str, Any]:
    """Returns params["lm"] as the module's own parameters."""
    return with_value(
      lm_params["module"], self.final_norm, lm_params["final_norm"]
    )
