"""The whole model: {"lm": next-token model, "heads": extra heads, stacked}.

Beside these two its parameters may have further parts, see `heads.parts`.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import flax.linen as nn
import jax
import jax.numpy as jnp

from mtpjax import config as config_lib
from mtpjax import parallel
from mtpjax.errors import UserError
from mtpjax.heads.block import BlockHead
from mtpjax.heads.context import HeadContext
from mtpjax.heads.kinds import kind_of
from mtpjax.heads.parts import Part
from mtpjax.heads.wiring import Wiring
from mtpjax.model import (
  KeyValues,
  Placement,
  Trunk,
  TrunkOutput,
  unembed,
  unembedding_of,
)

if TYPE_CHECKING:
  from mtpjax.model.foreign import ForeignModule, ForeignTrunk


def count_values(tree: Any) -> int:
  """Returns the number of values in a tree of arrays, shapes or boxes."""
  return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


@dataclasses.dataclass(frozen=True)
class MultiTokenModel:
  """Builds, applies and describes the parameters of a configuration.

  Attributes:
    config: the model; `vocab_size` is known.
    heads: the offsets and kind of the heads.
    mesh: the mesh everything is laid out on.
    foreign_trunk: somebody else's next-token model, in place of `config`'s
      own layers; `config` then says what sizes it has.
    parts: what the parameters have beside "lm" and "heads".
  """

  config: config_lib.Model
  heads: config_lib.Heads
  mesh: jax.sharding.Mesh
  foreign_trunk: "ForeignModule | None" = None
  parts: tuple[Part, ...] = ()

  def __post_init__(self):
    if self.config.vocab_size < 1:
      raise UserError(
        "model.vocab_size: 0 stands for the tokenizer's, which is not known "
        "here; give the number"
      )
    platform = self.mesh.devices.flat[0].platform
    if self.config.attention == "cudnn" and platform not in ("gpu", "cuda"):
      raise UserError(
        f"model.attention: cudnn needs a GPU, the mesh is of {platform} "
        "devices; give --model.attention auto"
      )
    dtypes = (self.config.dtype, self.config.param_dtype)
    if "float64" in dtypes and not jax.config.read("jax_enable_x64"):
      raise UserError(
        "model.dtype: float64 needs JAX's 64-bit mode; set JAX_ENABLE_X64=1"
      )
    if self.wiring.reads_embeddings and self.foreign_trunk is not None:
      raise UserError(
        f"heads.kind: {self.heads.kind!r} reads embeddings, which a "
        "trunk of one's own keeps to itself; use another kind"
      )

  @property
  def wiring(self) -> Wiring:
    """How the extra heads are strung over a text."""
    return kind_of(self.heads).wiring

  @property
  def head(self) -> nn.Module:
    """One extra head, to apply to the parameters of one."""
    return kind_of(self.heads)(self.config, self.heads)

  @property
  def trunk(self) -> "Trunk | ForeignTrunk":
    """The next-token model, to apply to params["lm"]."""
    if self.foreign_trunk is not None:
      from mtpjax.model.foreign import ForeignTrunk

      return ForeignTrunk(
        self.foreign_trunk, self.config, self.heads.tapped, self.mesh
      )
    return Trunk(self.config, self.trunk_layers, self.heads.tapped, self.mesh)

  @property
  def trunk_layers(self) -> int:
    """Layers of the next-token model; see `matching`."""
    return self.matching()[0]

  @functools.cache  # noqa: B019 - few models, each a value
  def matching(self) -> tuple[int, int]:
    """Finds the depth at which parameters match the next-token baseline.

    With `block` heads, n offsets cost n - 1 layers exactly (Gloeckle et al.
    2024, section 3.1); other kinds get the nearest depth.

    Returns:
      Layers of the trunk, and the parameters by which the model then exceeds
      the baseline of `config.n_layers` layers and no extra heads.

    Raises:
      UserError: the heads cost more layers than the model has, or the layers
        are somebody else's.
    """
    if not self.heads.n_extra:
      return self.config.n_layers, 0
    if self.foreign_trunk is not None and self.heads.matched:
      raise UserError(
        "heads.matched: a trunk of one's own keeps all its layers; set it false"
      )
    extra = self.heads.n_extra * count_values(self._abstract_head())
    layer = count_values(
      jax.eval_shape(lambda key: BlockHead(self.config, self.heads).init(
        key, *self._example()), jax.random.key(0))
    )  # fmt: skip
    if not self.heads.matched:
      return self.config.n_layers, extra
    removed = round(extra / layer)
    depth = self.config.n_layers - removed
    least = 2 if self.heads.tapped.is_inside else 1
    if depth < least:
      raise UserError(
        f"model.n_layers: {self.config.n_layers} layers cannot pay for "
        f"{self.heads.n_extra} extra heads ({removed} layers) and keep "
        f"{least}; add layers or set --heads.matched false"
      )
    return depth, extra - removed * layer

  def _example(self) -> tuple[jax.Array, HeadContext]:
    hidden_BTD = jnp.zeros((1, 1, self.config.d_model), self.config.dtype)
    context = HeadContext(
      Placement.whole(jnp.zeros((1, 1), jnp.int32)),
      ahead_BTD=hidden_BTD if self.wiring.reads_embeddings else None,
    )
    return hidden_BTD, context

  def _abstract_head(self) -> Any:
    return jax.eval_shape(
      lambda key: self.head.init(key, *self._example()), jax.random.key(0)
    )

  def init_boxed(
    self, key: jax.Array, given: Mapping[str, Any] | None = None
  ) -> dict[str, Any]:
    """Initialises all parameters, each in the box that names its axes.

    Args:
      key: a PRNG key. The values of a part do not depend on the other parts,
        but for heads that begin with copies of the unembedding.
      given: parts to take as they are, bare, such as a pretrained "lm".

    Returns:
      {"lm": ..., "heads": ...} and further parts; no "heads" where offset 1 is
      the only one.
    """
    lm_key, heads_key = jax.random.split(key)
    given = given or {}

    def part(name: str, make: Callable[[], Any]) -> Any:
      if name not in given:
        return make()
      return jax.tree.map(
        lambda box, value: box.replace_boxed(value),
        self.abstract()[name],
        given[name],
        is_leaf=parallel.is_box,
      )

    lm = part("lm", lambda: self._init_lm(lm_key))
    params = {"lm": lm}
    if self.heads.n_extra:
      params["heads"] = part("heads", lambda: self._init_heads(heads_key, lm))
    for number, extra in enumerate(self.parts, start=2):
      own_key = jax.random.fold_in(key, number)
      params[extra.name] = part(
        extra.name, functools.partial(extra.init, own_key, self)
      )
    return params

  def _init_heads(self, key: jax.Array, lm: Any) -> Any:
    heads = parallel.stack(
      lambda k: self.head.init(k, *self._example())["params"],
      key,
      self.heads.n_extra,
      "offsets",
    )
    if "unembedding" in heads:
      heads["unembedding"] = self._copies_of_unembedding(
        lm, heads["unembedding"]
      )
    return heads

  def _init_lm(self, key: jax.Array) -> Any:
    one_BT = jnp.zeros((1, 1), jnp.int32)
    return self.trunk.init(key, one_BT, Placement.whole(one_BT))["params"]

  def _copies_of_unembedding(self, lm: Any, box: Any) -> Any:
    original_DV = self.trunk.unembedding(parallel.unbox(lm))
    copies_MDV = jnp.broadcast_to(original_DV, box.value.shape)
    return box.replace_boxed(copies_MDV.astype(box.value.dtype))

  @functools.cache  # noqa: B019 - few models, each a value
  def abstract(self) -> Any:
    """Returns boxes around shapes and dtypes of all parameters."""
    return jax.eval_shape(self.init_boxed, jax.random.key(0))

  def init(self, key: jax.Array) -> Any:
    """Initialises all parameters as arrays, created where they will live."""
    shardings = parallel.shardings(self.abstract(), self.mesh)
    return jax.jit(
      lambda key: parallel.unbox(self.init_boxed(key)),
      out_shardings=shardings,
    )(key)

  def apply_trunk(
    self,
    lm_params: Any,
    tokens_BT: jax.Array,
    placement: Placement,
    cache: tuple[KeyValues, ...] | None = None,
    tap_probe: jax.Array | None = None,
  ) -> TrunkOutput:
    """Runs the trunk; see `Trunk.__call__`."""
    out = self.trunk.apply(
      {"params": lm_params}, tokens_BT, placement, cache, tap_probe
    )
    return cast(TrunkOutput, out)

  def apply_head(
    self,
    head_params: Any,
    norm_params: Any,
    tap_BTD: jax.Array,
    context: HeadContext,
  ) -> jax.Array:
    """Runs one extra head and the final norm, unless its tap is after that.

    Args:
      head_params: parameters of one head, `unembedding` not needed.
      norm_params: those of the final norm, params["lm"]["final_norm"].
      tap_BTD: tapped hidden states.
      context: of the rows.

    Returns:
      Hidden states [B, T, D] ready for the unembedding.
    """
    hidden_BTD = cast(
      jax.Array, self.head.apply({"params": head_params}, tap_BTD, context)
    )
    if self.heads.tapped.is_normed:
      return hidden_BTD
    return self.trunk.final_norm(norm_params, hidden_BTD)

  def head_logits(self, params: Any, normed: Sequence[jax.Array]) -> jax.Array:
    """Applies the unembeddings of heads.

    Args:
      params: {"lm": ..., "heads": a tuple}, as in decoding.
      normed: what `apply_head` returned for the first heads, [B, 1, D] each.

    Returns:
      Logits [B, heads, V], at least float32.
    """
    if self.heads.unembedding == "copied":
      logits = [
        unembed(x_B1D, unembedding_of(head))
        for x_B1D, head in zip(normed, params["heads"], strict=False)
      ]
      return jnp.concatenate(logits, axis=1)
    # One product for all heads.
    return unembed(
      jnp.concatenate(normed, axis=1), self.trunk.unembedding(params["lm"])
    )
