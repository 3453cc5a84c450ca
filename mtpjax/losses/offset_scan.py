"""The scan over offsets around the scan over chunks of tokens.

One device holds the logits of one chunk of one offset at a time. Gradients of
the unembedding, the tap and the shared parameters are carried along; those of
a head's own parameters are what the scan over heads puts out.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from mtpjax import parallel
from mtpjax.heads.parts import Trained
from mtpjax.losses.chunks import OffsetTarget, split_targets
from mtpjax.losses.cross_entropy import Unembeddings
from mtpjax.losses.inputs import Head, HeadInputs
from mtpjax.losses.one_offset import OneOffset, add
from mtpjax.losses.readout import OffsetSums, Sums
from mtpjax.losses.targets import Targets
from mtpjax.model import gradient_probe


class OneHead(struct.PyTreeNode):
  """What the scan over the extra heads walks; stacked, all of them.

  Attributes:
    per_offset: its parameters, or what its wiring made in place of them.
    own_DV: its own unembedding; None where it shares the model's.
    target: what it learns.
    coefficient: weight / count; None where no gradient is computed.
    probe: see `HeadInputs.probes`; None likewise.
  """

  per_offset: Any
  own_DV: jax.Array | None
  target: OffsetTarget
  coefficient: jax.Array | None = None
  probe: jax.Array | None = None


class Shared(struct.PyTreeNode):
  """Gradients that all offsets add to; None where nobody asks for one."""

  unembedding_GDV: Any = None
  tap_BTD: Any = None
  params: Any = None


class Own(struct.PyTreeNode):
  """Gradients of one head; stacked, of all of them."""

  per_offset: Any
  own_DV: jax.Array | None
  probe: jax.Array


def _scan_active(
  visit: Callable[[Any, OneHead], tuple[Any, Any]],
  carry: Any,
  heads: OneHead,
  n_active: jax.Array | None,
) -> tuple[Any, Any]:
  """Scans over the extra heads; of those that are not active runs nothing."""
  if n_active is None:
    return jax.lax.scan(visit, carry, heads)

  def skip(carry: Any, head: OneHead) -> tuple[Any, Any]:
    _, outputs = jax.eval_shape(visit, carry, head)
    return carry, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), outputs)

  def visit_if(carry: Any, xs: tuple[jax.Array, OneHead]) -> tuple[Any, Any]:
    index, head = xs
    return jax.lax.cond(index < n_active, visit, skip, carry, head)

  # Offset 1 is not among them.
  indices = 1 + jnp.arange(heads.target.ids_BT.shape[0])
  return jax.lax.scan(visit_if, carry, (indices, heads))


@dataclasses.dataclass(frozen=True)
class OffsetScan:
  """The loss, and its gradients, offset by offset.

  Attributes:
    head: see `multi_offset_loss`.
    mesh: the mesh the batch is cut over.
    one: runs one offset.
    trained: which parts learn.
  """

  head: Head
  mesh: jax.sharding.Mesh
  one: OneOffset
  trained: Trained

  def loss(
    self,
    inputs: HeadInputs,
    targets: Targets,
    coefficients_M: jax.Array,
    context: Any,
  ) -> tuple[jax.Array, OffsetSums]:
    """The loss alone: evaluation, and the forward pass of `remat`."""

    def visit(_: None, head: OneHead) -> tuple[None, Sums]:
      hidden_BTD = self.head(
        head.per_offset, inputs.shared, inputs.tap_BTD, context
      )
      own_GDV = self._spread(head.own_DV, inputs)
      return None, self._sums(inputs, hidden_BTD, own_GDV, head.target, targets)

    first_target, other_targets = split_targets(targets)
    first = self._sums(
      inputs, inputs.hidden_BTD, inputs.unembedding_DV, first_target, targets
    )
    others = None
    if other_targets is not None:
      heads = OneHead(inputs.per_offset, inputs.own_MDV, other_targets)
      _, others = _scan_active(visit, None, heads, targets.n_active)
    return _report(first, others, targets, coefficients_M)

  def loss_and_gradients(
    self,
    inputs: HeadInputs,
    targets: Targets,
    coefficients_M: jax.Array,
    context: Any,
  ) -> tuple[tuple[jax.Array, OffsetSums], HeadInputs]:
    """Forward and backward of each head in turn; fig. 2 of the paper."""

    def visit(shared: Shared, head: OneHead) -> tuple[Shared, Any]:
      shared, sums, own = self._head_gradients(
        shared, head, inputs, targets, context
      )
      return shared, (sums, own)

    first_target, other_targets = split_targets(targets)
    first, dhidden_BTD, shared = self._first_gradients(
      inputs, first_target, targets, coefficients_M
    )
    # Zero where there is no head; also for heads no target is given for.
    others = None
    own = Own(
      *jax.tree.map(
        jnp.zeros_like, (inputs.per_offset, inputs.own_MDV, inputs.probes)
      )
    )
    if other_targets is not None:
      heads = OneHead(
        inputs.per_offset, inputs.own_MDV, other_targets,
        coefficients_M[1:], inputs.probes,
      )  # fmt: skip
      shared, (others, own) = _scan_active(
        visit, shared, heads, targets.n_active
      )
    gradients = HeadInputs(
      per_offset=own.per_offset,
      shared=shared.params,
      hidden_BTD=dhidden_BTD,
      tap_BTD=shared.tap_BTD,
      unembedding_DV=shared.unembedding_GDV,
      probes=own.probe,
      own_MDV=own.own_DV,
    )
    # None stands for a gradient that nobody asks for.
    gradients = jax.tree.map(
      lambda g, x: None if g is None else g.astype(x.dtype),
      gradients,
      inputs,
      is_leaf=lambda g: g is None,
    )
    return _report(first, others, targets, coefficients_M), gradients

  def _sums(
    self,
    inputs: HeadInputs,
    hidden_BTD: jax.Array,
    own_GDV: jax.Array,
    target: OffsetTarget,
    targets: Targets,
  ) -> Sums:
    chunks = self.one.cutter.chunks(hidden_BTD, target, targets)
    return self.one.sums(chunks, Unembeddings(own_GDV, inputs.unembedding_DV))

  def _first_gradients(
    self,
    inputs: HeadInputs,
    target: OffsetTarget,
    targets: Targets,
    coefficients_M: jax.Array,
  ) -> tuple[Sums, Any, Shared]:
    """Offset 1: its sums, its states' gradient, and the shared ones begun."""
    unembedding_GDV = inputs.unembedding_DV
    if "lm" not in self.trained:
      sums = self._sums(
        inputs, inputs.hidden_BTD, unembedding_GDV, target, targets
      )
      return sums, None, Shared()
    zero_GDV = self._zero_dunembedding(inputs)
    sums, dhidden_BTD, dunembedding_GDV = self._gradients(
      inputs, inputs.hidden_BTD, unembedding_GDV, target, targets,
      coefficients_M[0], zero_GDV,
    )  # fmt: skip
    wide = _wide(inputs)
    shared = Shared(
      dunembedding_GDV,
      jnp.zeros(inputs.tap_BTD.shape, wide),
      jax.tree.map(
        lambda x: jnp.zeros(x.shape, jnp.promote_types(x.dtype, wide)),
        inputs.shared,
      ),
    )
    return sums, dhidden_BTD, shared

  def _head_gradients(
    self,
    so_far: Shared,
    one: OneHead,
    inputs: HeadInputs,
    targets: Targets,
    context: Any,
  ) -> tuple[Shared, Sums, Own]:
    """One extra head: adds to the shared gradients, returns its own."""

    def whole_head(per_offset, probe, shared, tap_BTD):
      tap_BTD = gradient_probe(tap_BTD, probe)
      return self.head(per_offset, shared, tap_BTD, context)

    if "lm" in self.trained:
      hidden_BTD, pull_back = jax.vjp(
        whole_head, one.per_offset, one.probe, inputs.shared, inputs.tap_BTD
      )
    else:
      hidden_BTD, pull_back = jax.vjp(
        lambda per_offset, probe: whole_head(
          per_offset, probe, inputs.shared, inputs.tap_BTD
        ),
        one.per_offset,
        one.probe,
      )
    own_GDV = self._spread(one.own_DV, inputs)
    down_GDV = so_far.unembedding_GDV
    if one.own_DV is not None:
      down_GDV = self._zero_dunembedding(inputs)
    sums, dhidden_BTD, down_GDV = self._gradients(
      inputs, hidden_BTD, own_GDV, one.target, targets, one.coefficient,
      down_GDV,
    )  # fmt: skip
    down_DV = None
    if one.own_DV is not None:
      down_DV = jnp.sum(down_GDV, axis=0)
      down_GDV = so_far.unembedding_GDV
    dper_offset, dprobe, *between = pull_back(dhidden_BTD)
    dshared, dtap_BTD = so_far.params, so_far.tap_BTD
    if between:
      dshared, dtap_BTD = add((dshared, dtap_BTD), tuple(between))
    own = Own(dper_offset, down_DV, dprobe)
    return Shared(down_GDV, dtap_BTD, dshared), sums, own

  def _gradients(
    self,
    inputs: HeadInputs,
    hidden_BTD: jax.Array,
    own_GDV: jax.Array,
    target: OffsetTarget,
    targets: Targets,
    coefficient: Any,
    dunembedding_GDV: jax.Array | None,
  ) -> tuple[Sums, jax.Array, Any]:
    """Sums of one offset, gradients of its states and its unembedding."""
    cutter = self.one.cutter
    chunks = cutter.chunks(hidden_BTD, target, targets)
    sums, dhidden_NGCD, dunembedding_GDV = self.one.gradients(
      chunks, Unembeddings(own_GDV, inputs.unembedding_DV), coefficient,
      dunembedding_GDV,
    )  # fmt: skip
    return sums, cutter.join(dhidden_NGCD, hidden_BTD.shape), dunembedding_GDV

  def _spread(self, own_DV: jax.Array | None, inputs: HeadInputs) -> jax.Array:
    """A head's own unembedding, a copy per shard, or the shared one."""
    if own_DV is None:
      return inputs.unembedding_DV
    return parallel.constrain(
      jnp.broadcast_to(own_DV, inputs.unembedding_DV.shape),
      self.mesh, "batch", "width", "vocab",
    )  # fmt: skip

  def _zero_dunembedding(self, inputs: HeadInputs) -> jax.Array:
    return parallel.constrain(
      jnp.zeros(inputs.unembedding_DV.shape, _wide(inputs)),
      self.mesh, "batch", "width", "vocab",
    )  # fmt: skip


def _wide(inputs: HeadInputs) -> jnp.dtype:
  """The dtype that sums and shared gradients are added up in."""
  return jnp.promote_types(inputs.hidden_BTD.dtype, jnp.float32)


def _report(
  first: Sums, others: Any, targets: Targets, coefficients_M: jax.Array
) -> tuple[jax.Array, OffsetSums]:
  """Joins the sums of all offsets, and weighs them."""
  sums: Any = jax.tree.map(lambda x: x[None], first)
  if others is not None:
    sums = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), sums, others)
  loss = jnp.sum(coefficients_M * sums.objective)
  return loss, OffsetSums(sums.nll, sums.correct, targets.counts_M, sums.extra)


def _scale(
  gradients: HeadInputs, cotangents: Any
) -> tuple[HeadInputs, None, None, None]:
  """Scales the gradients of the loss by its cotangent."""
  cotangent, _ = cotangents
  scaled = jax.tree.map(lambda g: g * cotangent.astype(g.dtype), gradients)
  # A probe holds a squared norm, so it scales with the square.
  probes = gradients.probes * jnp.square(cotangent)
  return scaled.replace(probes=probes), None, None, None


def differentiable(scan: OffsetScan, mode: str) -> Callable[..., Any]:
  """Returns the loss with its gradients.

  Args:
    scan: what computes them.
    mode: "fused" computes gradients in the forward pass and keeps them;
      "remat" computes loss and gradients anew in the backward pass.

  Returns:
    (inputs, targets, coefficients_M, context) -> (loss, `OffsetSums`), with
    `unembedding_DV` of the inputs given a leading shard axis. It computes no
    gradient unless it is differentiated; coefficients and context get none.
  """
  loss = jax.custom_vjp(scan.loss)
  if mode == "fused":
    loss.defvjp(scan.loss_and_gradients, _scale)
  else:
    loss.defvjp(
      lambda *arguments: (scan.loss(*arguments), arguments),
      lambda arguments, cotangents: _scale(
        scan.loss_and_gradients(*arguments)[1], cotangents
      ),
    )
  return loss
