"""What is saved comes back: on any mesh, whole or in part."""

import os
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from orbax.checkpoint import v1 as ocp
from stores import (
  abstract,
  assert_same,
  fill,
  make_state,
  mesh_of,
)

from mtpjax.checkpoint import Store, digest
from mtpjax.errors import UserError

# Meshes and values


@pytest.mark.parametrize(
  "sizes, spec",
  [((4,), (None, "data")), ((2, 2), ("fsdp", "data")), ((1,), ())],
)
def test_restores_bit_for_bit_on_another_mesh(tmp_path, sizes, spec):
  state = make_state(7, mesh_of(8), ("data",))
  assert len(state.params["lm"]["w"].sharding.device_set) == 8
  with Store(tmp_path) as saving:
    saving.save(7, state, {})
  target = abstract(state, mesh_of(*sizes), spec)
  found, _ = Store(tmp_path).restore(target, log=pytest.fail)
  assert_same(found, state)
  for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(target), strict=True):
    assert a.sharding == b.sharding


def test_stores_the_values_at_the_time_of_the_save(tmp_path):
  state = make_state(3, mesh_of(8), ("data",))
  expected = jax.device_get(state)
  train = jax.jit(lambda s: jax.tree.map(lambda x: x + 1, s), donate_argnums=0)
  with Store(tmp_path) as saving:
    saving.save(3, state, {})
    for _ in range(5):
      state = train(state)
  found, _ = Store(tmp_path).restore(abstract(state))
  assert_same(found, expected)


def test_restores_typed_keys(tmp_path):
  state = {"key": jax.random.key(5)}
  with Store(tmp_path) as saving:
    saving.save(1, state, {})
  sharding = NamedSharding(mesh_of(2), PartitionSpec())
  found, _ = Store(tmp_path).restore(
    {"key": jax.ShapeDtypeStruct((), state["key"].dtype, sharding=sharding)}
  )
  assert jax.random.bits(found["key"]) == jax.random.bits(state["key"])


def test_metadata_comes_back(tmp_path):
  metadata = {
    "config": {"model": {"d_model": 8, "offsets": [1, 2]}},
    "metrics": {"loss": 0.1 + 0.2, "accuracy": None},
    "tokenizer": "sha256:ab\u00e9",
    "empty": {},
  }
  with Store(tmp_path) as saving:
    saving.save(1, make_state(1), {})
    saving.save(2, make_state(2), metadata)
  reading = Store(tmp_path)
  assert reading.read_metadata() == metadata
  assert reading.read_metadata(1) == {}
  assert reading.restore(abstract(make_state(2)))[1] == metadata
  with pytest.raises(TypeError), Store(tmp_path) as saving:
    saving.save(3, make_state(3), {"path": tmp_path})


# Which steps there are


def test_keeps_the_latest(tmp_path):
  fill(tmp_path, 1, 2, 3, 4, keep=2)
  assert Store(tmp_path).steps() == [3, 4]
  assert sorted(os.listdir(tmp_path)) == ["3", "4"]
  found, _ = Store(tmp_path).restore(abstract(make_state(3)), step=3)
  assert_same(found, make_state(3))


@pytest.mark.parametrize("step", [3, 5])
def test_refuses_a_step_that_is_not_after_the_latest(tmp_path, step):
  fill(tmp_path, 5)
  with Store(tmp_path) as saving:
    with pytest.raises(UserError, match=f"step {step}: not after.*is 5"):
      saving.save(step, make_state(step), {})
  assert Store(tmp_path).steps() == [5]


def test_foreign_folders_are_no_steps(tmp_path):
  fill(tmp_path, 10)
  (tmp_path / "40").mkdir()
  (tmp_path / "050").mkdir()
  (tmp_path / "notes").mkdir()
  (tmp_path / "60").write_text("a file")
  (tmp_path / "70").mkdir()
  (tmp_path / "70" / "photo").write_text("")
  reading = Store(tmp_path)
  assert reading.steps() == [10] and reading.latest_step() == 10
  found, _ = reading.restore(abstract(make_state(10)), log=pytest.fail)
  assert_same(found, make_state(10))
  fill(tmp_path, 40, keep=2)  # an empty folder is not in the way either
  assert Store(tmp_path).steps() == [10, 40]


def test_ignores_and_replaces_what_a_killed_save_left(tmp_path):
  fill(tmp_path, 10)
  for step in (20, 30):
    stale = tmp_path / f"{step}.orbax-checkpoint-tmp"
    (stale / "state").mkdir(parents=True)
    (stale / "state" / "manifest.ocdbt").write_text("half")
  assert Store(tmp_path).latest_step() == 10
  fill(tmp_path, 20)
  assert sorted(os.listdir(tmp_path)) == ["10", "20"]
  found, _ = Store(tmp_path).restore(abstract(make_state(20)), log=pytest.fail)
  assert_same(found, make_state(20))


@pytest.mark.parametrize("name", ["absent", "empty"])
def test_nothing_to_restore(tmp_path, name):
  (tmp_path / "empty").mkdir()
  reading = Store(tmp_path / name)
  assert reading.steps() == [] and reading.latest_step() is None
  for read in (
    reading.read_metadata,
    lambda: reading.restore(abstract(make_state(1))),
  ):
    with pytest.raises(UserError, match="check the path") as error:
      read()
    assert str(tmp_path / name) in str(error.value)
    assert "\n" not in str(error.value)
  with pytest.raises(UserError, match="step 5: not in .*no checkpoint"):
    reading.restore(abstract(make_state(1)), step=5)
  assert sorted(os.listdir(tmp_path)) == ["empty"]


def test_refuses_a_url_and_keeping_nothing(tmp_path):
  with pytest.raises(UserError, match="gs://bucket/run.*not a URL"):
    Store("gs://bucket/run")
  with pytest.raises(UserError, match="0 must be at least 1"):
    Store(tmp_path, keep=0)


def test_orbax_itself_reads_and_deletes_steps_with_a_digest(tmp_path):
  fill(tmp_path, 10, 20)
  with ocp.training.Checkpointer(tmp_path) as checkpointer:
    found = checkpointer.load(20, abstract(make_state(20)))
    assert_same(found, make_state(20))
    checkpointer.delete(10)
  assert os.listdir(tmp_path) == ["20"]


# Another tree


def test_another_tree_is_one_table_and_no_fallback(tmp_path, capfd):
  fill(tmp_path, 10, 20)
  asked = abstract(make_state(20))
  asked.params["lm"]["w"] = jax.ShapeDtypeStruct((16, 9), jnp.float32)
  asked.params["lm"]["norm"] = jax.ShapeDtypeStruct((8,), jnp.float32)
  asked.params["lm"]["bias"] = jax.ShapeDtypeStruct((8,), jnp.float32)
  del asked.params["heads"]
  with pytest.raises(UserError, match="20: holds another tree") as error:
    Store(tmp_path).restore(asked, log=pytest.fail)
  rows = [line.split() for line in str(error.value).split("\n")[1:]]
  assert rows == [
    ["name", "in", "the", "checkpoint", "asked", "for"],
    ["extra", "params/heads/w", "float32[3,8,8]", "-"],
    ["missing", "params/lm/bias", "-", "float32[8]"],
    ["dtype", "params/lm/norm", "bfloat16[8]", "float32[8]"],
    ["shape", "params/lm/w", "float32[16,8]", "float32[16,9]"],
  ]
  assert capfd.readouterr() == ("", "")


def test_another_optimizer_is_a_difference(tmp_path):
  fill(tmp_path, 10)
  asked = abstract(make_state(10))
  asked = asked.replace(opt_state=(*asked.opt_state, optax.EmptyState()))
  with pytest.raises(UserError, match=r"missing +opt_state/2 +- +empty\[\]"):
    Store(tmp_path).restore(asked)


# A part


def test_restores_a_part(tmp_path):
  fill(tmp_path, 10)
  state = make_state(10)
  target = abstract(
    {"params": {"lm": state.params["lm"]}}, mesh_of(8), ("data",)
  )
  reading = Store(tmp_path)
  found, metadata = reading.restore(target, partial=True, log=pytest.fail)
  assert_same(found, {"params": {"lm": state.params["lm"]}})
  assert found["params"]["lm"]["w"].sharding.num_devices == 8
  assert metadata == {"step": 10}
  with pytest.raises(UserError, match="extra +opt_state"):
    reading.restore(target)
  target["params"]["lm"]["bias"] = target["params"]["lm"]["norm"]
  with pytest.raises(UserError, match="missing +params/lm/bias"):
    reading.restore(target, partial=True)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_part_does_not_read_the_rest(tmp_path):
  # Random bits do not compress, so the rest can be found in the file and
  # overwritten: whoever reads it fails.
  rng = np.random.default_rng(0)
  part, rest = (rng.integers(0, 2**32, 4096, dtype=np.uint32) for _ in "ab")
  with Store(tmp_path) as saving:
    saving.save(1, {"lm": jnp.asarray(part), "rest": jnp.asarray(rest)}, {})
  (tmp_path / "1" / digest.NAME).unlink()
  middle = rest[1000:1004].tobytes()
  files = [
    p for p in (tmp_path / "1").rglob("*")
    if p.is_file() and middle in p.read_bytes()
  ]  # fmt: skip
  assert files
  for path in files:
    data = bytearray(path.read_bytes())
    at = data.find(middle) - 1000 * 4
    data[at - 8 : at + 4096] = bytes(8 + 4096)  # the frame's header as well
    path.write_bytes(data)
  spec = jax.ShapeDtypeStruct(
    (4096,), jnp.uint32, sharding=jnp.ones(1).sharding
  )
  with pytest.raises(UserError, match="damaged"):
    Store(tmp_path).restore({"lm": spec, "rest": spec}, step=1)
  found, _ = Store(tmp_path).restore({"lm": spec}, step=1, partial=True)
  np.testing.assert_array_equal(found["lm"], part)


# Leaves without elements


def test_stores_leaves_of_size_0(tmp_path):
  state = {
    "none": jnp.zeros((0, 3)),
    "half": (jnp.zeros((2, 0), jnp.bfloat16), jnp.arange(3)),
  }
  with Store(tmp_path) as saving:
    saving.save(1, state, {})
  asked = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(
      x.shape, x.dtype, sharding=NamedSharding(mesh_of(2), PartitionSpec())
    ),
    state,
  )
  found, _ = Store(tmp_path).restore(asked, log=pytest.fail)
  assert_same(found, state)
  assert found["none"].sharding == asked["none"].sharding
  part, _ = Store(tmp_path).restore({"none": asked["none"]}, partial=True)
  assert_same(part, {"none": state["none"]})
  other = asked | {"none": jax.ShapeDtypeStruct((0, 4), jnp.float32)}
  with pytest.raises(UserError, match="holds another tree.*\n.*\n.*0x3"):
    Store(tmp_path).restore(other)


def test_a_directory_that_cannot_be_made(tmp_path):
  (tmp_path / "file").write_text("")
  with pytest.raises(UserError, match="saving failed .Not a dir|File exists"):
    Store(tmp_path / "file").save(1, make_state(1), {}, wait=True)


def test_save_does_not_wait_for_the_disk(tmp_path, monkeypatch):
  go_on = threading.Event()
  write = digest.write
  monkeypatch.setattr(digest, "write", lambda d: go_on.wait(10) and write(d))
  with Store(tmp_path) as saving:
    saving.save(10, make_state(10), {})
    assert not (tmp_path / "10" / digest.NAME).exists()
    go_on.set()
    saving.wait()
    assert (tmp_path / "10" / digest.NAME).exists()
  assert not any(
    thread.name.startswith("checkpoint") for thread in threading.enumerate()
  )
