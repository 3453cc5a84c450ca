"""Saves that fail, or find something in their way."""

import os
import resource
import tempfile

import jax
import jax.numpy as jnp
import pytest
from orbax.checkpoint import v1 as ocp
from stores import (
  abstract,
  assert_same,
  fill,
  make_state,
)

from mtpjax.checkpoint import Store, digest, store
from mtpjax.errors import UserError

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
