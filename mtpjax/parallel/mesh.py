"""The device mesh, and arrays that enter it from the host."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from mtpjax import config as config_lib
from mtpjax.errors import UserError

AXES = ("data", "fsdp", "model")
BATCH_AXES = ("data", "fsdp")


def make_mesh(
  config: config_lib.Mesh, devices: Sequence[jax.Device] | None = None
) -> jax.sharding.Mesh:
  """Builds the mesh of a configuration.

  Args:
    config: sizes of the axes; one of them may be -1 (what is left).
    devices: the devices to use; all of them if None.

  Returns:
    A mesh with axes `data`, `fsdp` and `model`, all of type Auto.

  Raises:
    UserError: the sizes don't fit the number of devices.
  """
  devices = list(jax.devices() if devices is None else devices)
  sizes = [config.data, config.fsdp, config.model]
  if -1 in sizes:
    rest = math.prod(s for s in sizes if s != -1)
    if rest < len(devices) and len(devices) % rest:
      raise UserError(
        f"mesh: {tuple(sizes)} cannot use all {len(devices)} devices, which "
        f"do not divide by {rest}; give all three sizes"
      )
    sizes[sizes.index(-1)] = len(devices) // rest
  wanted = math.prod(sizes)
  # One process may use some of its devices; many must use all of theirs.
  fits = (
    0 < wanted <= len(devices)
    if jax.process_count() == 1
    else wanted == len(devices)
  )
  if not fits:
    raise UserError(
      f"mesh: {tuple(sizes)} needs {wanted} devices, {len(devices)} are here; "
      "change --mesh.data, --mesh.fsdp or --mesh.model (-1 takes what is left)"
    )
  return jax.make_mesh(
    tuple(sizes),
    AXES,
    axis_types=(AxisType.Auto,) * len(AXES),
    devices=devices[:wanted],
  )


def single_device_mesh() -> jax.sharding.Mesh:
  """Returns the 1x1x1 mesh on the first local device."""
  return make_mesh(config_lib.Mesh(), jax.local_devices()[:1])


def batch_shards(mesh: jax.sharding.Mesh) -> int:
  """Returns into how many parts the rows of a batch are cut."""
  return math.prod(mesh.shape[axis] for axis in BATCH_AXES)


def check_batch(rows: int, mesh: jax.sharding.Mesh, name: str) -> None:
  """Raises UserError unless `rows` divides over the batch axes of `mesh`."""
  shards = batch_shards(mesh)
  if rows % shards:
    raise UserError(
      f"{name}: {rows} rows do not divide over data x fsdp = {shards} shards; "
      f"take a multiple of {shards}"
    )


def place_batch(local: Any, mesh: jax.sharding.Mesh) -> Any:
  """Puts this process's rows of a batch on its devices.

  Args:
    local: a tree of NumPy arrays [rows of this process, ...].
    mesh: the mesh; rows are cut over `data` and `fsdp`.

  Returns:
    The tree of global arrays [rows of all processes, ...].
  """
  sharding = NamedSharding(mesh, PartitionSpec(BATCH_AXES))

  def place(array: np.ndarray) -> jax.Array:
    return jax.make_array_from_process_local_data(sharding, array)

  return jax.tree.map(place, local)
