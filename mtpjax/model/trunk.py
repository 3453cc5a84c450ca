"""The trunk: the complete next-token model, with a tap for further heads.

Parameters: {"embedding", "layers", "final_norm", "unembedding"}. Layers are
stored stacked [L, ...] and scanned; a tuple of layers (see `unstack_layers`) is
run by a plain loop, which is what decoding does: a scan over stacked weights
copies each layer's weights at every pass.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct

from mtpjax import config as config_lib
from mtpjax import parallel
from mtpjax.model import block, linear, norm
from mtpjax.model.placement import Placement
from mtpjax.model.probe import gradient_probe

_CHECKPOINT_POLICIES = {
  "full": jax.checkpoint_policies.nothing_saveable,
  "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


class TrunkOutput(struct.PyTreeNode):
  """What a pass of the trunk returns.

  Attributes:
    tap_BTD: hidden states that further heads read.
    hidden_BTD: hidden states after the last layer, before the final norm.
    rows: keys and values of this pass: one pair per layer from a tuple of
      layers; from stacked layers stacked [L, ...] if asked for, else ().
  """

  tap_BTD: jax.Array
  hidden_BTD: jax.Array
  rows: Any


class Trunk(nn.Module):
  """Embedding, layers, final norm and unembedding.

  Attributes:
    config: the model; `vocab_size` is known.
    n_layers: layers of the trunk (fewer than `config.n_layers` where matched
      heads took some).
    tap: what further heads read.
    mesh: the mesh activations are laid out on.
  """

  config: config_lib.Model
  n_layers: int
  tap: config_lib.Tap
  mesh: jax.sharding.Mesh

  @nn.compact
  def __call__(
    self,
    tokens_BT: jax.Array,
    placement: Placement,
    cache: Any = None,
    tap_probe: jax.Array | None = None,
  ) -> TrunkOutput:
    """Runs all layers.

    Args:
      tokens_BT: token ids.
      placement: of the rows.
      cache: see `run`.
      tap_probe: a float scalar whose gradient becomes the squared norm of the
        gradient that offset 1 sends to the tap.

    Returns:
      A `TrunkOutput`.
    """
    c = self.config
    self.param(
      "embedding",
      parallel.logical(
        nn.initializers.normal(c.d_model**-0.5), "vocab", "embed"
      ),
      (c.vocab_size, c.d_model),
      jnp.dtype(c.param_dtype),
    )
    if self.is_initializing():
      one = block.Block(c, parent=None)
      row_BTD = jnp.zeros((1, 1, c.d_model), c.dtype)
      place = Placement.whole(jnp.zeros((1, 1), jnp.int32))
      self.param(
        "layers",
        lambda key: parallel.stack(
          lambda k: one.init(k, row_BTD, place)["params"],
          key,
          self.n_layers,
          "layers",
        ),
      )
      self._init_output()
    lm_params = parallel.unbox(dict(self.variables["params"]))
    return self.run(
      lm_params, self.embed(lm_params, tokens_BT), placement, cache, tap_probe,
    )  # fmt: skip

  def embed(self, lm_params: Any, tokens_BT: jax.Array) -> jax.Array:
    """Returns the embeddings [B, T, D] of tokens.

    Args:
      lm_params: parameters of the trunk.
      tokens_BT: token ids.
    """
    # Gathering the width first keeps the lookup itself local to each row.
    table_VD = parallel.constrain(
      lm_params["embedding"].astype(self.config.dtype),
      self.mesh, "vocab", "width",
    )  # fmt: skip
    return self._constrain(table_VD[tokens_BT])

  def run(
    self,
    lm_params: Any,
    x_BTD: jax.Array,
    placement: Placement,
    cache: Any = None,
    tap_probe: jax.Array | None = None,
    keeps_rows: bool = False,
  ) -> TrunkOutput:
    """Runs all layers over states from anywhere, such as `embed`.

    Args:
      lm_params: parameters of the trunk; layers stacked, or a tuple of them.
      x_BTD: what the first layer reads.
      placement: of the rows.
      cache: keys and values of earlier passes, only read: one pair per layer,
        as a tuple or stacked [L, ...] as the layers are.
      tap_probe: see `__call__`.
      keeps_rows: return the keys and values of stacked layers too.

    Returns:
      A `TrunkOutput`.
    """
    one = block.Block(self.config, parent=None)
    layers = lm_params["layers"]
    if isinstance(layers, tuple):
      return self._loop(one, lm_params, x_BTD, placement, cache, tap_probe)
    return self._scan(
      one, lm_params, x_BTD, placement, cache, tap_probe, keeps_rows
    )

  def _init_output(self):
    c = self.config
    norm.RMSNorm(c.norm_eps, c.param_dtype, name="final_norm")(
      jnp.zeros((1, 1, c.d_model))
    )
    if not c.tied_embeddings:
      self.param(
        "unembedding",
        parallel.logical(
          nn.initializers.normal(c.d_model**-0.5), "embed", "vocab"
        ),
        (c.d_model, c.vocab_size),
        jnp.dtype(c.param_dtype),
      )

  def _constrain(self, x_BTD: jax.Array) -> jax.Array:
    return parallel.constrain(x_BTD, self.mesh, "batch", "time", "width")

  def _scan(
    self, one, lm_params, x_BTD, placement, cache, tap_probe, keeps_rows
  ):
    last = self.n_layers - 1
    taps_inside = self.tap.is_inside

    def run_layer(carry, xs):
      x_BTD, tap_BTD = carry
      index, params, cache = xs
      if taps_inside:
        tap_BTD = jnp.where(index == last, x_BTD, tap_BTD)
        if tap_probe is not None:
          # Only the last layer's gradient may reach the probe.
          x_BTD = gradient_probe(
            x_BTD, jnp.where(index == last, tap_probe, 0.0)
          )
      x_BTD, new = one.apply({"params": params}, x_BTD, placement, cache)
      return (self._constrain(x_BTD), tap_BTD), new if keeps_rows else None

    if self.config.remat != "none":
      run_layer = jax.checkpoint(
        run_layer, policy=_CHECKPOINT_POLICIES[self.config.remat]
      )
    (x_BTD, tap_BTD), rows = jax.lax.scan(
      run_layer,
      (x_BTD, x_BTD),
      (jnp.arange(self.n_layers), lm_params["layers"], cache),
    )
    if not taps_inside:
      tap_BTD = self._tap_at_end(lm_params, x_BTD)
      if tap_probe is not None:
        x_BTD = gradient_probe(x_BTD, tap_probe)
    return TrunkOutput(tap_BTD, x_BTD, rows if keeps_rows else ())

  def _tap_at_end(self, lm_params: Any, x_BTD: jax.Array) -> jax.Array:
    if not self.tap.is_normed:
      return x_BTD
    return self.final_norm(lm_params["final_norm"], x_BTD)

  def _loop(self, one, lm_params, x_BTD, placement, cache, tap_probe):
    layers = lm_params["layers"]
    assert tap_probe is None, "probes belong to training"
    rows = []
    tap_BTD = x_BTD
    for i, params in enumerate(layers):
      if i == len(layers) - 1:
        tap_BTD = x_BTD
      x_BTD, new = one.apply(
        {"params": params},
        x_BTD,
        placement,
        None if cache is None else cache[i],
      )
      x_BTD = self._constrain(x_BTD)
      rows.append(new)
    if not self.tap.is_inside:
      tap_BTD = self._tap_at_end(lm_params, x_BTD)
    return TrunkOutput(tap_BTD, x_BTD, tuple(rows))

  def final_norm(self, norm_params: Any, hidden: jax.Array) -> jax.Array:
    """Applies the final norm, which all heads share, to [..., D]."""
    return norm.rms_norm(norm_params["scale"], hidden, self.config.norm_eps)

  def unembedding(self, lm_params: Any) -> jax.Array:
    """Returns the unembedding [D, V] of the parameters of the trunk."""
    if self.config.tied_embeddings:
      return lm_params["embedding"].T
    return unembedding_of(lm_params)

  def logits(self, lm_params: Any, hidden: jax.Array) -> jax.Array:
    """Returns the logits [..., V] of hidden states [..., D].

    Applies the final norm, then the unembedding; at least float32.
    """
    normed = self.final_norm(lm_params["final_norm"], hidden)
    return unembed(normed, self.unembedding(lm_params))

  def for_decoding(self, lm_params: Any) -> Any:
    """Returns params["lm"] as decoding runs it; see `_loop`."""
    layers = linear.transpose_kernels(unstack_layers(lm_params["layers"]))
    return transpose_unembedding(lm_params | {"layers": layers})


def unembedding_of(params: Any) -> jax.Array:
  """Returns the unembedding [D, V] of a model or a head that has its own."""
  if "unembedding_VD" in params:
    return params["unembedding_VD"].T
  return params["unembedding"]


def transpose_unembedding(params: Any) -> Any:
  """Returns parameters whose unembedding, if any, is stored [V, D].

  For decoding, see `linear.transpose_kernels`.
  """
  if "unembedding" not in params:
    return params
  rest = {k: v for k, v in params.items() if k != "unembedding"}
  return rest | {"unembedding_VD": params["unembedding"].T}


def unembed(normed: jax.Array, unembedding_DV: jax.Array) -> jax.Array:
  """Returns the logits [..., V] of normed states; at least float32."""
  # Over the last axes of both: of one row XLA would copy a table [V, D], which
  # is what decoding has, to turn it round.
  return jax.lax.dot_general(
    normed,
    unembedding_DV.T.astype(normed.dtype),
    (((normed.ndim - 1,), (1,)), ((), ())),
    preferred_element_type=jnp.promote_types(normed.dtype, jnp.float32),
  )


def unstack_layers(stacked: Any) -> tuple[Any, ...]:
  """Turns a tree of [n, ...] arrays into a tuple of n trees."""
  n = jax.tree.leaves(stacked)[0].shape[0]
  return tuple(
    jax.tree.map(lambda leaf, i=i: leaf[i], stacked) for i in range(n)
  )
