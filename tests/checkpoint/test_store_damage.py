"""Damaged checkpoints are seen, and an older one is taken."""

import os
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stores import (
  DATA,
  abstract,
  assert_same,
  file_of,
  fill,
  flip,
  make_state,
  truncate,
  unlink,
)

from mtpjax.checkpoint import Store, digest, store
from mtpjax.errors import UserError

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
