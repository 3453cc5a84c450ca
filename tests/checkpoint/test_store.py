import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from orbax.checkpoint import v1 as ocp

from mtpjax.checkpoint import Store, digest, store
from mtpjax.errors import UserError

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


# Damage


@pytest.mark.parametrize(
  "damage, name",
  [
    (flip, DATA),
    (truncate, DATA),
    (unlink, DATA),
    (flip, "state/ocdbt.process_0/d/*"),
    (flip, "state/_METADATA"),
    (unlink, "state/_METADATA"),
    (flip, "_CHECKPOINT_METADATA"),
    (unlink, "_CHECKPOINT_METADATA"),
    (truncate, digest.NAME),
  ],
)
def test_falls_back_from_damage(tmp_path, capfd, damage, name):
  fill(tmp_path, 10, 20)
  damage(file_of(tmp_path, 20, name))
  lines = []
  reading = Store(tmp_path)
  found, metadata = reading.restore(abstract(make_state(10)), log=lines.append)
  assert_same(found, make_state(10))
  assert metadata == {"step": 10} and reading.latest_step() == 10
  assert len(lines) == 1 and "\n" not in lines[0]
  assert f"{tmp_path}/20 is DAMAGED" in lines[0]
  assert capfd.readouterr() == ("", "")


def test_training_goes_on_after_a_fallback(tmp_path):
  fill(tmp_path, 10, 20, 30)
  for step in (20, 30):
    flip(file_of(tmp_path, step))
  with Store(tmp_path) as run:
    run.restore(abstract(make_state(10)), log=lambda line: None)
    run.save(15, make_state(15), {})
    run.save(20, make_state(20), {})
    run.wait()
    assert run.steps() == [10, 15, 20]
  names = sorted(os.listdir(tmp_path))
  assert [name.partition("-")[0] for name in names] == [
    "10", "15", "20", "20.damaged", "30.damaged",
  ]  # fmt: skip
  found, _ = Store(tmp_path).restore(abstract(make_state(20)), log=pytest.fail)
  assert_same(found, make_state(20))


def test_only_reading_moves_nothing(tmp_path):
  fill(tmp_path, 10, 20)
  flip(file_of(tmp_path, 20))
  with Store(tmp_path) as reading:
    reading.restore(abstract(make_state(10)), log=lambda line: None)
  assert sorted(os.listdir(tmp_path)) == ["10", "20"]


def test_says_when_every_checkpoint_is_damaged(tmp_path):
  fill(tmp_path, 10, 20)
  for step in (10, 20):
    flip(file_of(tmp_path, step))
  lines = []
  with pytest.raises(UserError, match=r"damaged \(10, 20\)") as error:
    Store(tmp_path).restore(abstract(make_state(10)), log=lines.append)
  assert str(tmp_path) in str(error.value) and "\n" not in str(error.value)
  assert len(lines) == 2


def test_an_explicit_step_does_not_fall_back(tmp_path):
  fill(tmp_path, 10, 20)
  flip(file_of(tmp_path, 20))
  with pytest.raises(UserError, match="20: damaged .*other steps there: 10"):
    Store(tmp_path).restore(abstract(make_state(10)), step=20)
  found, _ = Store(tmp_path).restore(abstract(make_state(10)), step=10)
  assert_same(found, make_state(10))


def test_metadata_is_read_from_an_older_step_when_damaged(tmp_path):
  fill(tmp_path, 10, 20)
  truncate(tmp_path / "20" / "_CHECKPOINT_METADATA")
  assert Store(tmp_path).read_metadata() == {"step": 10}
  with pytest.raises(UserError, match="20: its metadata is damaged"):
    Store(tmp_path).read_metadata(20)


def test_accepts_a_step_without_digest_loudly(tmp_path):
  fill(tmp_path, 10)
  (tmp_path / "10" / digest.NAME).unlink()
  lines = []
  found, _ = Store(tmp_path).restore(abstract(make_state(10)), log=lines.append)
  assert_same(found, make_state(10))
  assert len(lines) == 1 and "UNVERIFIED" in lines[0]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("damage", [truncate, unlink])
@pytest.mark.parametrize("name", [DATA, "state/_METADATA"])
def test_falls_back_from_an_unreadable_step_without_digest(
  tmp_path, capfd, damage, name
):
  fill(tmp_path, 10, 20)
  (tmp_path / "20" / digest.NAME).unlink()
  damage(file_of(tmp_path, 20, name))
  lines = []
  found, _ = Store(tmp_path).restore(abstract(make_state(10)), log=lines.append)
  assert_same(found, make_state(10))
  assert ["UNVERIFIED" in lines[0], "DAMAGED" in lines[1]] == [True, True]
  assert capfd.readouterr() == ("", "")


def test_an_error_in_a_verified_step_is_not_damage(tmp_path, monkeypatch):
  fill(tmp_path, 10, 20)

  def out_of_memory(*_, **__):
    raise RuntimeError("RESOURCE_EXHAUSTED")

  monkeypatch.setattr(store.ocp, "load", out_of_memory)
  with pytest.raises(RuntimeError, match="RESOURCE_EXHAUSTED"):
    Store(tmp_path).restore(abstract(make_state(20)), log=pytest.fail)


KILLED = """
import sys, time, jax.numpy as jnp
from mtpjax.checkpoint import Store, digest
digest.write = lambda directory: (print("now", flush=True), time.sleep(60))
store = Store(sys.argv[1])
store.save(20, {"w": jnp.arange(8.0)}, {"step": 20})
store.wait()
"""


def test_killed_between_commit_and_digest(tmp_path):
  command = [sys.executable, "-c", KILLED, str(tmp_path)]
  with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
    assert process.stdout.readline() == "now\n"
    process.send_signal(signal.SIGKILL)
  lines = []
  spec = jax.ShapeDtypeStruct((8,), jnp.float32, sharding=jnp.ones(1).sharding)
  found, metadata = Store(tmp_path).restore({"w": spec}, log=lines.append)
  np.testing.assert_array_equal(found["w"], np.arange(8.0))
  assert metadata == {"step": 20} and "UNVERIFIED" in lines[0]


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


# Failing in the background


@pytest.mark.parametrize("call", ["save", "wait", "close", "restore"])
def test_a_failed_save_surfaces_at_the_next_call(tmp_path, monkeypatch, call):
  fill(tmp_path, 10)
  saving = Store(tmp_path)

  def disk_is_full(directory):
    raise OSError(28, "No space left on device")

  monkeypatch.setattr(digest, "write", disk_is_full)
  saving.save(20, make_state(20), {})
  with pytest.raises(UserError, match="20: saving failed .*No space") as error:
    {
      "save": lambda: saving.save(30, make_state(30), {}),
      "wait": saving.wait,
      "close": saving.close,
      "restore": lambda: saving.restore(abstract(make_state(10))),
    }[call]()
  assert "\n" not in str(error.value)
  assert str(error.value).endswith("the same command then goes on from step 10")
  monkeypatch.undo()
  saving.close()  # it is reported once


def test_a_disk_error_in_orbax_surfaces(tmp_path, capfd):
  saving = Store(tmp_path)
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, hard))
  try:
    saving.save(10, {"w": jax.random.normal(jax.random.key(0), (1 << 18,))}, {})
    with pytest.raises(UserError, match="10: saving failed .File too large.;"):
      saving.wait()
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
  saving.save(20, make_state(20), {})
  saving.close()
  assert os.listdir(tmp_path) == ["20"]
  assert capfd.readouterr() == ("", "")


def interrupted_copy(path):
  path.mkdir()
  (path / "state").mkdir()
  (path / "state" / "manifest.ocdbt").write_text("half")


def without_write_permission(path):
  interrupted_copy(path)
  path.chmod(0o500)


def dangling_link(path):
  path.symlink_to("nowhere")


def a_file(path):
  path.write_text("mine")


@pytest.mark.parametrize(
  "put", [interrupted_copy, without_write_permission, dangling_link, a_file]
)
def test_what_is_in_the_way_is_moved_aside_loudly(tmp_path, capfd, put):
  fill(tmp_path, 10)
  put(tmp_path / "20")
  lines = []
  with Store(tmp_path) as saving:
    saving.save(20, make_state(20), {}, log=lines.append)
  assert len(lines) == 1 and "DAMAGED" in lines[0] and "\n" not in lines[0]
  (aside,) = tmp_path.glob("20.damaged-*")
  assert str(tmp_path / "20") in lines[0] and aside.name in lines[0]
  found, _ = Store(tmp_path).restore(abstract(make_state(20)), log=pytest.fail)
  assert_same(found, make_state(20))
  assert Store(tmp_path).steps() == [10, 20]
  assert capfd.readouterr() == ("", "")


def test_a_copy_that_stopped_after_the_marker_is_damage(tmp_path):
  fill(tmp_path, 10, 20)
  (tmp_path / "20" / digest.NAME).unlink()
  for path in (tmp_path / "20" / "state").iterdir():
    if path.is_file():
      path.unlink()
  lines = []
  with Store(tmp_path) as run:
    run.restore(abstract(make_state(10)), log=lines.append)
    run.save(20, make_state(20), {})
  assert "20 is DAMAGED" in lines[-1]
  assert len(list(tmp_path.glob("20.damaged-*"))) == 1


def test_leftovers_of_a_deletion_do_not_stop_a_save(tmp_path):
  fill(tmp_path, 1, 2)
  (tmp_path / "1.deleted").mkdir()
  (tmp_path / "1.deleted" / "half").write_text("")
  (tmp_path / "7.deleted").write_text("a file")
  fill(tmp_path, 3, keep=2)
  assert sorted(os.listdir(tmp_path)) == ["2", "3"]


def test_a_step_that_cannot_be_deleted_is_only_warned_of(tmp_path, monkeypatch):
  fill(tmp_path, 1)

  def refuses(path):
    raise PermissionError(13, "Permission denied", str(path))

  monkeypatch.setattr(store.shutil, "rmtree", refuses)
  lines = []
  with Store(tmp_path, keep=1) as saving:
    saving.save(2, make_state(2), {}, log=lines.append)
  assert len(lines) == 1 and "1.deleted: cannot be deleted" in lines[0]
  assert Store(tmp_path).steps() == [2]


# Read back before it counts


ODD = ["a[1]", "b*", "c?", "d[!x]", "**", "x\\y", "e%20#x", "[", "g h"]


@pytest.mark.parametrize("name", ODD)
def test_any_name_of_a_folder_will_do(tmp_path, name):
  # A neighbour that the name matches as a pattern is not read by mistake.
  fill(tmp_path / "bb", 2)
  directory = tmp_path / name / "checkpoints"
  state = {"w": jnp.arange(4.0)}
  with Store(directory, keep=1) as saving:
    saving.save(1, state, {})
    saving.save(2, state, {"step": 2})
  assert os.listdir(directory) == ["2"]
  asked = {
    "w": jax.ShapeDtypeStruct((4,), "float32", sharding=state["w"].sharding)
  }
  with Store(directory) as reading:
    found, metadata = reading.restore(asked, log=pytest.fail)
    assert_same(found, state)
    assert metadata == reading.read_metadata() == {"step": 2}


def test_the_alias_of_a_folder_goes_and_is_not_in_messages(
  tmp_path, monkeypatch
):
  (tmp_path / "tmp").mkdir()
  monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
  directory = tmp_path / "a[1]"
  fill(directory, 1)
  (directory / "1" / digest.NAME).unlink()
  for path in (directory / "1" / "state" / "d").iterdir():
    path.unlink()
  with Store(directory) as reading:
    with pytest.raises(UserError, match="damaged") as error:
      reading.restore(abstract(make_state(1)), step=1, log=lambda line: None)
    assert "mtpjax-" not in str(error.value)
  assert os.listdir(tmp_path / "tmp") == []


@pytest.mark.parametrize("lost", ["manifest.ocdbt", "_METADATA", "other tree"])
def test_a_save_that_cannot_be_read_back_does_not_count(
  tmp_path, monkeypatch, lost
):
  fill(tmp_path, 1, keep=1)
  real = ocp.save_async

  class Written:
    def __init__(self, path, *args, **options):
      if lost == "other tree":
        args = ({"w": jnp.zeros(1)},)
      self.path, self.written = path, real(path, *args, **options)

    def result(self):
      self.written.result()
      if lost != "other tree":
        (self.path / "state" / lost).unlink()

  monkeypatch.setattr(store.ocp, "save_async", Written)
  with pytest.raises(UserError, match="2: saving failed") as error:
    with Store(tmp_path, keep=1) as saving:
      saving.save(2, make_state(2), {})
  assert "\n" not in str(error.value)
  assert Store(tmp_path).steps() == [1]
  found, _ = Store(tmp_path).restore(abstract(make_state(1)), log=pytest.fail)
  assert_same(found, make_state(1))


def test_a_verified_step_whose_tree_is_unreadable_is_damage(tmp_path):
  fill(tmp_path, 10, 20)
  for path in (tmp_path / "20" / "state").glob("*.ocdbt"):
    path.unlink()
  digest.write(tmp_path / "20")
  lines = []
  found, _ = Store(tmp_path).restore(abstract(make_state(10)), log=lines.append)
  assert_same(found, make_state(10))
  assert len(lines) == 1 and "20 is DAMAGED" in lines[0]


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
