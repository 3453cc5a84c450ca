"""Meshes and the batches that enter them."""

import jax
import numpy as np
import pytest
from jax.sharding import AxisType

from mtpjax import config as config_lib
from mtpjax import parallel
from mtpjax.errors import UserError


def one_line(error):
  return "\n" not in str(error.value)


def test_the_mesh_has_the_sizes_asked_for():
  mesh = parallel.make_mesh(config_lib.Mesh(data=2, fsdp=-1, model=2))
  assert dict(mesh.shape) == {"data": 2, "fsdp": 2, "model": 2}
  assert mesh.axis_types == (AxisType.Auto,) * 3
  assert parallel.batch_shards(mesh) == 4
  single = parallel.single_device_mesh()
  assert single.devices.tolist() == [[[jax.devices()[0]]]]
  assert parallel.batch_shards(single) == 1


@pytest.mark.parametrize(
  "sizes, devices", [((3, 3, 1), 8), ((16, 1, 1), 8), ((-1, 4, 4), 8),
                     ((1, 1, 2), 1)],
)  # fmt: skip
def test_a_mesh_that_does_not_fit_is_one_line(sizes, devices):
  with pytest.raises(UserError, match=f"{devices} are here") as error:
    parallel.make_mesh(config_lib.Mesh(*sizes), jax.devices()[:devices])
  assert one_line(error) and "--mesh.data" in str(error.value)


@pytest.mark.parametrize("sizes", [(0, 1, 1), (-1, -1, 1), (1, -2, 1)])
def test_sizes_that_are_none_are_refused(sizes):
  with pytest.raises(UserError, match="^mesh: ") as error:
    config_lib.Mesh(*sizes)
  assert one_line(error)


def test_rows_must_divide_over_the_shards():
  mesh = parallel.make_mesh(config_lib.Mesh(data=2, fsdp=2, model=2))
  parallel.check_batch(8, mesh, "train.batch_size")
  with pytest.raises(UserError, match="train.batch_size: 6 rows") as error:
    parallel.check_batch(6, mesh, "train.batch_size")
  assert one_line(error) and "multiple of 4" in str(error.value)


def test_a_placed_batch_is_cut_over_data_and_fsdp():
  mesh = parallel.make_mesh(config_lib.Mesh(data=2, fsdp=2, model=2))
  rows = {"tokens": np.arange(24).reshape(8, 3)}
  placed = parallel.place_batch(rows, mesh)["tokens"]
  np.testing.assert_array_equal(placed, rows["tokens"])
  seen = set()
  for shard in placed.addressable_shards:
    assert shard.data.shape == (2, 3)  # model: copies
    seen.add(int(shard.data[0, 0]))
  assert seen == {0, 6, 12, 18}


def test_what_is_left_must_divide():
  with pytest.raises(UserError, match="do not divide by 3"):
    parallel.make_mesh(config_lib.Mesh(data=-1, fsdp=3))
