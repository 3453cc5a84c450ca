"""The trunk that a module of one's own makes."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from mtpjax import config as config_lib
from mtpjax import parallel
from mtpjax.errors import UserError
from mtpjax.model.foreign.description import Cache, ForeignModule
from mtpjax.model.foreign.paths import take
from mtpjax.model.placement import Placement
from mtpjax.model.probe import gradient_probe
from mtpjax.model.trunk import TrunkOutput, unembed
from mtpjax.parallel.axes import RULES


@dataclasses.dataclass(frozen=True)
class ForeignTrunk:
  """Offers of a `ForeignModule` what `Trunk` offers.

  Attributes:
    module: the module.
    config: the sizes that heads and caches need: `vocab_size`, `d_model`,
      `dtype`, and for decoding `n_layers`, `n_kv_heads` and `d_head`.
    tap: "before_last" (which the module has to return), "last" or "normed".
    mesh: the mesh activations are laid out on.
  """

  module: ForeignModule
  config: config_lib.Model
  tap: config_lib.Tap
  mesh: jax.sharding.Mesh

  def init(
    self,
    key: jax.Array,
    tokens_BT: jax.Array,
    placement: Placement,
  ) -> dict[str, Any]:
    """Initialises the parameters, each in the box that names its axes.

    Args:
      key: a PRNG key.
      tokens_BT: token ids.
      placement: of the rows.

    Returns:
      {"params": {"module": ..., "final_norm": ...}}.

    Raises:
      UserError: sizes that aren't those of `config`, a name of an axis that
        does not exist, or no tap where one is wanted.
    """
    params = self.module.init(
      key, tokens_BT, placement.positions_BT, self._allowed(placement, None)
    )
    boxed = jax.tree_util.tree_map_with_path(
      self._box, params, is_leaf=parallel.is_box
    )
    lm = self.module.pack(boxed)
    self._check(
      *jax.eval_shape(
        lambda lm: (
          self.unembedding(lm),
          self._run(lm, tokens_BT, placement, None),
        ),
        parallel.unbox(lm),
      )
    )
    return {"params": lm}

  def _box(self, path: Any, leaf: Any) -> parallel.Logical:
    if parallel.is_box(leaf):
      return leaf
    name = "/".join(str(part.key) for part in path)
    names = tuple(self.module.axes(name, leaf.shape))
    unknown = [axis for axis in names if axis not in RULES]
    if unknown or len(names) != leaf.ndim:
      raise UserError(
        f"parameter {name}: axes {names} of shape {leaf.shape}; name each of "
        f"them by one of {', '.join(RULES)}"
      )
    return parallel.Logical(leaf, names)

  def _check(self, unembedding_DV: Any, out: TrunkOutput) -> None:
    c = self.config
    if unembedding_DV.shape != (c.d_model, c.vocab_size):
      raise UserError(
        f"unembedding {'/'.join(self.module.unembedding)}: is "
        f"{unembedding_DV.shape}, and model.d_model and model.vocab_size are "
        f"{(c.d_model, c.vocab_size)}; make them agree"
      )
    for name in ("tap_BTD", "hidden_BTD"):
      width = getattr(out, name).shape[-1]
      if width != c.d_model:
        raise UserError(
          f"module: returns {name} {width} wide, and model.d_model is "
          f"{c.d_model}; make them agree"
        )

  def apply(
    self,
    variables: Mapping[str, Any],
    tokens_BT: jax.Array,
    placement: Placement,
    cache: Cache = None,
    tap_probe: jax.Array | None = None,
  ) -> TrunkOutput:
    """Runs the module; see `Trunk.__call__`.

    Args:
      variables: {"params": params["lm"]}.
      tokens_BT: token ids.
      placement: of the rows.
      cache: one per layer, only read.
      tap_probe: see `Trunk.__call__`; with a tap before the last layer, which
        is the module's own, its gradient is 0.

    Returns:
      A `TrunkOutput`.

    Raises:
      UserError: the module returns no tap, and one is wanted.
    """
    lm = variables["params"]
    out = self._run(lm, tokens_BT, placement, cache)
    hidden_BTD = self._constrain(out.hidden_BTD)
    if self.tap.is_inside:
      return TrunkOutput(self._constrain(out.tap_BTD), hidden_BTD, out.rows)
    tap_BTD = hidden_BTD
    if self.tap.is_normed:
      tap_BTD = self.final_norm(lm["final_norm"], hidden_BTD)
    if tap_probe is not None:
      hidden_BTD = gradient_probe(hidden_BTD, tap_probe)
    return TrunkOutput(tap_BTD, hidden_BTD, out.rows)

  def embed(self, lm_params: Any, tokens_BT: jax.Array) -> jax.Array:
    """Raises UserError: a module takes ids, and keeps embeddings to itself."""
    raise UserError(
      "trunk: a module of one's own takes ids and keeps its embeddings to "
      "itself; use a kind of head that does not read them"
    )

  def _run(self, lm, tokens_BT, placement, cache) -> TrunkOutput:
    out = self.module.run(
      self.module.unpack(lm),
      tokens_BT,
      placement.positions_BT,
      self._allowed(placement, cache),
      cache,
    )
    if isinstance(out, TrunkOutput):
      return out
    if self.tap.is_inside:
      raise UserError(
        "heads.tap: before_last, but the module returns only its last hidden "
        "states; return a TrunkOutput, or set heads.tap last"
      )
    return TrunkOutput(out, out, ())

  def _allowed(self, placement, cache) -> jax.Array:
    capacity = cache[0].keys_BKSH.shape[2] if cache else 0
    return placement.allowed(capacity, self.config.sliding_window)

  def _constrain(self, x_BTD: jax.Array) -> jax.Array:
    return parallel.constrain(
      x_BTD.astype(self.config.dtype), self.mesh, "batch", "time", "width"
    )

  def final_norm(self, norm_params: Any, hidden: jax.Array) -> jax.Array:
    """Applies the final norm, which all heads share, to [..., D]."""
    return self.module.norm(norm_params, hidden).astype(hidden.dtype)

  def unembedding(self, lm_params: Any) -> jax.Array:
    """Returns the unembedding [D, V] of params["lm"]."""
    found = take(lm_params["module"], self.module.unembedding, "unembedding")
    return found.T if self.module.is_embedding else found

  def logits(self, lm_params: Any, hidden: jax.Array) -> jax.Array:
    """Returns the logits [..., V] of hidden states [..., D]; see `Trunk`."""
    normed = self.final_norm(lm_params["final_norm"], hidden)
    return unembed(normed, self.unembedding(lm_params))

  def for_decoding(self, lm_params: Any) -> Any:
    """Returns params["lm"] as it is, of a module that can decode.

    Args:
      lm_params: {"module": ..., "final_norm": ...}.

    Returns:
      The same.

    Raises:
      UserError: the module returns no keys and values, or not those of the
        configuration.
    """
    c = self.config
    one_BT = jnp.zeros((1, 1), jnp.int32)
    out = jax.eval_shape(
      lambda lm: self._run(lm, one_BT, Placement.whole(one_BT), None),
      lm_params,
    )
    shapes = [leaf.shape for leaf in jax.tree.leaves(out.rows)]
    wanted = (1, c.n_kv_heads, 1, c.d_head)
    if len(out.rows) != c.n_layers or any(s != wanted for s in shapes):
      given = f"[B, K, T, H] = {shapes[0]} each" if shapes else "none"
      raise UserError(
        "module: to decode it must return the keys and values of "
        f"model.n_layers = {c.n_layers} layers as TrunkOutput.rows, {wanted} "
        f"each for one token, and read those of `cache`; it returns "
        f"{len(out.rows)} ({given})"
      )
    return lm_params
