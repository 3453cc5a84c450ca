"""Logical axes: the one place that maps names to mesh axes.

Modules say what an axis *is* ("embed", "mlp", "vocab"), in a `Logical` box
around each parameter's initial value. Shardings, the decay mask and the
abstract tree for restore are all read from these boxes.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
from flax import struct
from jax.sharding import NamedSharding, PartitionSpec

from mtpjax.parallel import mesh as mesh_lib

RULES: dict[str, str | tuple[str, ...] | None] = {
  # Parameters.
  "embed": "fsdp",
  "embed_out": None,
  "vocab": "model",
  "mlp": "model",
  "attention_heads": "model",
  "kv_heads": "model",
  "d_head": None,
  "norm": None,
  "layers": None,
  "offsets": None,
  # Activations.
  "batch": mesh_lib.BATCH_AXES,
  "time": None,
  "width": None,
}


class Logical(struct.PyTreeNode, nn.meta.AxisMetadata):
  """A parameter's value and the logical names of its axes.

  `unbox` returns the bare value and adds no sharding constraint, unlike
  Flax's own partitioning boxes.
  """

  value: Any
  names: tuple[str, ...] = struct.field(pytree_node=False)

  def unbox(self) -> Any:
    """Returns the value."""
    return self.value

  def replace_boxed(self, val: Any) -> "Logical":
    """Returns the box around another value."""
    return self.replace(value=val)

  def add_axis(self, index: int, params: dict) -> "Logical":
    """Unused: layers are stacked by `stack`, not by lifted transforms."""
    raise TypeError("Logical boxes are stacked with parallel.stack")

  remove_axis = add_axis


def is_box(x: Any) -> bool:
  """True for a `Logical` box; for `jax.tree.map(..., is_leaf=is_box)`."""
  return isinstance(x, Logical)


def logical(init: Callable[..., Any], *names: str) -> Callable[..., Any]:
  """Wraps an initialiser so that it returns a box with these axis names."""

  def boxed(key, shape, dtype):
    assert len(shape) == len(names), (shape, names)
    return Logical(init(key, shape, dtype), names)

  return boxed


def stack(
  init: Callable[[jax.Array], Any], key: jax.Array, n: int, name: str
) -> Any:
  """Initialises n modules with their own keys, stacked on a new first axis.

  Args:
    init: from a key to a tree of boxes.
    key: split into n.
    n: how many.
    name: the logical name of the new axis.

  Returns:
    A tree of boxes whose values are [n, ...].
  """
  boxes = jax.vmap(init)(jax.random.split(key, n))
  return jax.tree.map(
    lambda box: box.replace(names=(name, *box.names)), boxes, is_leaf=is_box
  )


def unbox(tree: Any) -> Any:
  """Returns the tree of bare values."""
  return jax.tree.map(
    lambda x: x.value if is_box(x) else x, tree, is_leaf=is_box
  )


def partition(
  names: tuple[str | None, ...],
  shape: tuple[int, ...],
  mesh: jax.sharding.Mesh,
) -> PartitionSpec:
  """Maps logical axes to mesh axes.

  An axis whose size the mesh axes don't divide is kept whole, so that any
  vocabulary and any number of attention heads works on any mesh.

  Args:
    names: logical names, None for an axis that is never cut.
    shape: sizes of the same axes.
    mesh: the mesh.

  Returns:
    The partition spec.

  Raises:
    ValueError: an unknown name, or one mesh axis used twice.
  """
  spec: list[Any] = []
  used: set[str] = set()
  for name, size in zip(names, shape, strict=True):
    if name is not None and name not in RULES:
      raise ValueError(f"unknown logical axis {name!r}; see parallel/axes.py")
    axes = RULES[name] if name is not None else None
    group = (axes,) if isinstance(axes, str) else axes or ()
    cuts = 1
    for axis in group:
      cuts *= mesh.shape[axis]
    if not group or size % cuts:
      spec.append(None)
      continue
    if used & set(group):
      raise ValueError(f"{names}: mesh axes {group} are used twice")
    used |= set(group)
    spec.append(axes)
  return PartitionSpec(*spec)


def shardings(boxes: Any, mesh: jax.sharding.Mesh) -> Any:
  """Returns the `NamedSharding` of every value; unboxed ones are whole."""

  def sharding(leaf: Any) -> NamedSharding:
    if not is_box(leaf):
      return NamedSharding(mesh, PartitionSpec())
    return NamedSharding(mesh, partition(leaf.names, leaf.value.shape, mesh))

  return jax.tree.map(sharding, boxes, is_leaf=is_box)


def abstract_arrays(boxes: Any, mesh: jax.sharding.Mesh) -> Any:
  """Returns shape, dtype and sharding of every value, for a restore.

  Args:
    boxes: a tree of boxes around shapes, from `jax.eval_shape`.
    mesh: where the arrays will live.

  Returns:
    The tree of `jax.ShapeDtypeStruct` with shardings.
  """
  return jax.tree.map(
    lambda leaf, sharding: jax.ShapeDtypeStruct(
      leaf.shape, leaf.dtype, sharding=sharding
    ),
    unbox(boxes),
    shardings(boxes, mesh),
  )


def constrain(x: jax.Array, mesh: jax.sharding.Mesh, *names: str | None):
  """Fixes the sharding of an activation by the names of its axes."""
  return jax.lax.with_sharding_constraint(
    x, NamedSharding(mesh, partition(names, x.shape, mesh))
  )
