"""States and stores for the tests of checkpoints, and ways to damage them."""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec

from mtpjax.checkpoint import Store

OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))


@flax.struct.dataclass
class State:
  step: jax.Array
  params: dict[str, Any]
  opt_state: Any


def mesh_of(*sizes):
  devices = np.array(jax.devices()[: int(np.prod(sizes))]).reshape(sizes)
  return jax.sharding.Mesh(devices, ("data", "fsdp")[: len(sizes)])


def make_state(step, mesh=None, spec=()):
  """A state whose values depend on `step`; matrices are sharded by `spec`."""
  rng = np.random.default_rng(step)

  def draw(*dims, dtype=jnp.float32):
    return jnp.asarray(rng.normal(size=dims), dtype)

  params = {
    "lm": {"w": draw(16, 8), "norm": draw(8, dtype=jnp.bfloat16)},
    "heads": {"w": draw(3, 8, 8)},
  }
  opt_state = OPTIMIZER.init(params)
  updates, opt_state = OPTIMIZER.update(params, opt_state, params)
  state = State(
    jnp.int32(step), optax.apply_updates(params, updates), opt_state
  )
  return jax.device_put(state, shardings(state, mesh, spec))


def shardings(state, mesh=None, spec=()):
  mesh = mesh or mesh_of(1)
  return jax.tree.map(
    lambda x: NamedSharding(
      mesh, PartitionSpec(*spec) if x.ndim == 2 else PartitionSpec()
    ),
    state,
  )


def abstract(state, mesh=None, spec=()):
  return jax.tree.map(
    lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
    state,
    shardings(state, mesh, spec),
  )


def assert_same(found, expected):
  assert jax.tree.structure(found) == jax.tree.structure(expected)
  for a, b in zip(
    jax.tree.leaves(found), jax.tree.leaves(expected), strict=True
  ):
    assert a.dtype == b.dtype
    np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def fill(directory, *steps, keep=3):
  """Saves `make_state(step)` for each step and closes."""
  with Store(directory, keep) as saving:
    for step in steps:
      saving.save(step, make_state(step), {"step": step})


DATA = "state/d/*"  # where Orbax keeps small arrays


def file_of(directory, step, pattern=DATA):
  (path,) = (directory / str(step)).glob(pattern)
  return path


def flip(path):
  data = bytearray(path.read_bytes())
  data[len(data) // 2] ^= 1
  path.write_bytes(data)


def truncate(path):
  path.write_bytes(path.read_bytes()[:100])


def unlink(path):
  path.unlink()
