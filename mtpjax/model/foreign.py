"""Somebody else's next-token model as a trunk: a Flax Linen or NNX module.

The module maps (tokens_BT, positions_BT, allowed_B1TS, cache) to hidden states.
`linen_module` and `nnx_module` describe it; `heads.MultiTokenModel` takes the
description in place of mtpjax's own layers. Its parameters become
{"lm": {"module": ..., "final_norm": ...}}, with the names they have.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from mtpjax import config as config_lib
from mtpjax import parallel
from mtpjax.errors import UserError
from mtpjax.model import masks
from mtpjax.model.attention import KeyValues
from mtpjax.model.probe import gradient_probe
from mtpjax.model.trunk import TrunkOutput, unembed
from mtpjax.parallel.axes import RULES

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
      _take(params, getattr(self, what), what)
    return {
      "module": _without(params, self.final_norm),
      "final_norm": _take(params, self.final_norm, "final_norm"),
    }

  def unpack(self, lm_params: Any) -> dict[str, Any]:
    """Returns params["lm"] as the module's own parameters."""
    return _with(lm_params["module"], self.final_norm, lm_params["final_norm"])


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
    _split(final_norm),
    *_unembedding(unembedding, embedding),
    axes,
  )


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

  path = _split(final_norm)
  unembedding_path, is_embedding = _unembedding(unembedding, embedding)
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
    _find(nnx.eval_shape(lambda: make(nnx.Rngs(0))), path), nnx.Param
  )

  def fill(shapes, params):
    # Pure dicts number the parts of lists; a checkpoint wants names.
    state = jax.tree.map(lambda leaf: leaf, shapes)
    numbered = _renamed(nnx.to_pure_dict(shapes), params)
    nnx.replace_by_pure_dict(state, numbered)
    return state

  def init(key, tokens_BT, positions_BT, allowed_B1TT):
    del tokens_BT, positions_BT, allowed_B1TT
    return _named(nnx.to_pure_dict(make_parts(key)[1]))

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
    positions_BT: jax.Array,
    mask: masks.AttentionMask,
  ) -> dict[str, Any]:
    """Initialises the parameters, each in the box that names its axes.

    Args:
      key: a PRNG key.
      tokens_BT: token ids.
      positions_BT: positions within the document.
      mask: who reads whom.

    Returns:
      {"params": {"module": ..., "final_norm": ...}}.

    Raises:
      UserError: sizes that aren't those of `config`, a name of an axis that
        does not exist, or no tap where one is wanted.
    """
    params = self.module.init(
      key, tokens_BT, positions_BT, self._allowed(mask, positions_BT, None)
    )
    boxed = jax.tree_util.tree_map_with_path(
      self._box, params, is_leaf=parallel.is_box
    )
    lm = self.module.pack(boxed)
    inputs = (tokens_BT, positions_BT, mask)
    self._check(
      *jax.eval_shape(
        lambda lm: (self.unembedding(lm), self._run(lm, *inputs, None)),
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
    positions_BT: jax.Array,
    mask: masks.AttentionMask,
    cache: Cache = None,
    tap_probe: jax.Array | None = None,
  ) -> TrunkOutput:
    """Runs the module; see `Trunk.__call__`.

    Args:
      variables: {"params": params["lm"]}.
      tokens_BT: token ids.
      positions_BT: positions within the document.
      mask: who reads whom.
      cache: one per layer, only read.
      tap_probe: see `Trunk.__call__`; with a tap before the last layer, which
        is the module's own, its gradient is 0.

    Returns:
      A `TrunkOutput`.

    Raises:
      UserError: the module returns no tap, and one is wanted.
    """
    lm = variables["params"]
    out = self._run(lm, tokens_BT, positions_BT, mask, cache)
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

  def _run(self, lm, tokens_BT, positions_BT, mask, cache) -> TrunkOutput:
    out = self.module.run(
      self.module.unpack(lm),
      tokens_BT,
      positions_BT,
      self._allowed(mask, positions_BT, cache),
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

  def _allowed(self, mask, positions_BT, cache) -> jax.Array:
    capacity = cache[0].keys_BKSH.shape[2] if cache else 0
    return masks.allowed(
      mask, positions_BT, capacity, self.config.sliding_window
    )

  def _constrain(self, x_BTD: jax.Array) -> jax.Array:
    return parallel.constrain(
      x_BTD.astype(self.config.dtype), self.mesh, "batch", "time", "width"
    )

  def final_norm(self, norm_params: Any, hidden: jax.Array) -> jax.Array:
    """Applies the final norm, which all heads share, to [..., D]."""
    return self.module.norm(norm_params, hidden).astype(hidden.dtype)

  def unembedding(self, lm_params: Any) -> jax.Array:
    """Returns the unembedding [D, V] of params["lm"]."""
    found = _take(lm_params["module"], self.module.unembedding, "unembedding")
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
      lambda lm: self._run(lm, one_BT, one_BT, masks.packed(one_BT), None),
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


def _split(path: str) -> tuple[str, ...]:
  return tuple(path.split("/"))


def _unembedding(unembedding: str, embedding: str) -> tuple[Any, bool]:
  if bool(unembedding) == bool(embedding):
    raise UserError(
      f"unembedding {unembedding!r}, embedding {embedding!r}: give the path of "
      "one of them"
    )
  return _split(unembedding or embedding), bool(embedding)


def _keep_logical(leaf: Any) -> Any:
  """Returns the bare value of Flax's own boxes, whose axes have other names."""
  if isinstance(leaf, nn.Partitioned):
    return leaf.unbox(apply_constraint=False)
  return leaf


def _is_boxed(leaf: Any) -> bool:
  return isinstance(leaf, nn.meta.AxisMetadata)


def _find(module: Any, path: tuple[str, ...]) -> Any:
  """Returns a part of an NNX module."""
  for name in path:
    try:
      module = module[int(name)] if name.isdigit() else getattr(module, name)
    except (AttributeError, IndexError) as error:
      raise UserError(
        f"final_norm {'/'.join(path)}: the module has no {name!r} there"
      ) from error
  return module


def _take(params: Any, path: tuple[str, ...], what: str) -> Any:
  """Returns what is at the path."""
  found = params
  for name in path:
    if not isinstance(found, Mapping) or name not in found:
      there = ", ".join(sorted(found)) if isinstance(found, Mapping) else "none"
      raise UserError(
        f"{what} {'/'.join(path)}: the module has no parameters {name!r} "
        f"there, but {there}"
      )
    found = found[name]
  return found


def _without(params: Any, path: tuple[str, ...]) -> dict[str, Any]:
  """Returns nested dicts without what is at the path."""
  first, *others = path
  rest = {name: value for name, value in params.items() if name != first}
  if others:
    rest[first] = _without(params[first], tuple(others))
  return rest


def _with(params: Any, path: tuple[str, ...], value: Any) -> dict[str, Any]:
  """Returns nested dicts with a value at the path."""
  first, *others = path
  if others:
    value = _with(params[first], tuple(others), value)
  return {**params, first: value}


def _named(tree: Any) -> Any:
  """Returns nested dicts whose keys are all strings."""
  if not isinstance(tree, Mapping):
    return tree
  return {str(name): _named(value) for name, value in tree.items()}


def _renamed(like: Any, named: Any) -> Any:
  """Undoes `_named`."""
  if not isinstance(like, Mapping):
    return named
  return {name: _renamed(like[name], named[str(name)]) for name in like}
