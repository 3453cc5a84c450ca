"""The whole loss on meshes of eight devices: values, and XLA's programs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import programs
import pytest
import tiny
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from mtpjax import config as config_lib
from mtpjax import parallel

HEADS = config_lib.Heads(offsets=(1, 2, 3), matched=False)
D, V = 32, 248  # see `tiny.model_config`
MESHES = [(8, 1, 1), (1, 8, 1), (2, 2, 2), (1, 1, 8)]


def batch():
  """Rows of 12 with one to three documents, and prompts without loss."""
  rng = np.random.default_rng(5)
  rows, masks = [], []
  for lengths in [[12], [5, 7], [3, 4], [1, 11], [4, 4, 4], [2], [10, 2], [9]]:
    rows.append([rng.integers(1, V, n).tolist() for n in lengths])
    masks.append([[t % 5 != 0 for t in range(n)] for n in lengths])
  return tiny.pack(rows, 12, V, masks)


@functools.cache
def on_one_device():
  """Parameters, and (loss, sums), gradients with all logits alive."""
  model = tiny.multi_token_model(None, HEADS)
  params = tiny.random_params(model.abstract(), seed=1)
  step = jax.jit(tiny.value_and_grad(model, config_lib.Loss(mode="unrolled")))
  return params, step(params, jnp.zeros(3), batch(), jnp.ones(3))


def is_dunembedding(shape):
  """[D, V] or [G, D, V], whole or cut."""
  if len(shape) < 2 or any(n != 1 for n in shape[:-2]):
    return False
  return shape[-2] in (D, D // 2, D // 8) and shape[-1] in (V, V // 2, V // 8)


@pytest.mark.parametrize("mode", ["fused", "remat"])
@pytest.mark.parametrize("sizes", MESHES)
def test_eight_devices_compute_what_one_does(sizes, mode, really_compile):
  params, expected = on_one_device()
  mesh = parallel.make_mesh(config_lib.Mesh(*sizes))
  model = tiny.multi_token_model(mesh, HEADS)
  shardings = parallel.shardings(model.abstract(), mesh)
  whole = NamedSharding(mesh, P())
  args = (
    jax.device_put(params, shardings),
    jnp.zeros(3),
    parallel.place_batch(batch(), mesh),
    jnp.ones(3),
  )
  step = jax.jit(
    tiny.value_and_grad(model, config_lib.Loss(mode=mode, chunk_tokens=7)),
    # As a train step has them: gradients live where the parameters do.
    out_shardings=(whole, (shardings, whole)),
  )
  with programs.captured_stderr() as stderr:
    compiled = step.lower(*args).compile()
    printed = stderr()
  assert "nvoluntary" not in printed, printed

  (loss, sums), gradients = compiled(*args)
  (want_loss, want_sums), want_gradients = jax.device_get(expected)
  assert abs(float(loss) - want_loss) <= 1e-6 * abs(want_loss)
  tiny.assert_close(sums, want_sums, 1e-6)
  tiny.assert_close(gradients, want_gradients, 1e-5)

  # The gradient of the unembedding crosses the devices once, or not at all
  # where every device sees the whole batch.
  outside, inside = programs.sums_over_devices(
    compiled.as_text(), is_dunembedding
  )
  assert (outside, inside) == (parallel.batch_shards(mesh) > 1, 0)


def test_the_detector_of_sums_sees_those_inside_a_loop():
  mesh = parallel.make_mesh(config_lib.Mesh(data=8))
  rows = NamedSharding(mesh, P(None, "data"))

  def accumulate(hidden_XCD, dlogits_XCV):
    def add(total, xs):
      return total + xs[0].T @ xs[1], None

    zero = jax.lax.with_sharding_constraint(
      jnp.zeros((D, V)), NamedSharding(mesh, P())
    )
    return jax.lax.scan(add, zero, (hidden_XCD, dlogits_XCV))[0]

  compiled = (
    jax.jit(
      accumulate,
      in_shardings=(rows, rows),
      out_shardings=NamedSharding(mesh, P()),
    )
    .lower(jnp.ones((3, 16, D)), jnp.ones((3, 16, V)))
    .compile()
  )
  assert programs.sums_over_devices(compiled.as_text(), is_dunembedding) == (
    0,
    1,
  )


def test_the_detector_of_rematerialisation_sees_one(really_compile):
  mesh = parallel.make_mesh(config_lib.Mesh(data=2, fsdp=2, model=2))

  # Between these two the partitioners of jaxlib 0.10 to 0.12 know no way.
  before, after = P("data", "model"), P("model", ("fsdp", "data"))

  def transfer(x):
    x = jax.lax.with_sharding_constraint(x, NamedSharding(mesh, before))
    x = jnp.sort(2 * x, axis=0)
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, after))

  with programs.captured_stderr() as stderr:
    jax.jit(transfer).lower(jnp.ones((8, 8))).compile()
    assert "nvoluntary full rematerialization" in stderr()
