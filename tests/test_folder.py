"""Folders that appear complete or not at all, wherever they are."""

import errno
import os
import pathlib

import pytest

from mtpjax.config import folder as folder_lib
from mtpjax.config.folder import new_folder
from mtpjax.errors import UserError


def fill(part):
  (part / "config.json").write_text("{}")
  (part / "checkpoints" / "0").mkdir(parents=True)
  (part / "checkpoints" / "0" / "state").write_text("1")


def names(folder):
  return sorted(
    path.relative_to(folder).as_posix()
    for path in folder.rglob("*")
    if path.is_file()
  )


WHOLE = ["checkpoints/0/state", "config.json"]


def the_parent_is_not_writable(patch, volume):
  mkdir = pathlib.Path.mkdir

  def refuses(path, *args, **options):
    if path.parent == volume.parent:
      raise PermissionError(errno.EACCES, "Permission denied", str(path))
    mkdir(path, *args, **options)

  patch.setattr(pathlib.Path, "mkdir", refuses)


def it_is_a_volume(patch, volume):
  patch.setattr(os.path, "ismount", lambda path: path == volume)


def it_cannot_be_replaced(patch, volume):
  rename = pathlib.Path.rename

  def refuses(path, target):
    if target == volume:
      raise OSError(errno.EBUSY, "Device or resource busy")
    return rename(path, target)

  patch.setattr(pathlib.Path, "rename", refuses)


def it_is_a_new_file_system(patch, volume):
  (volume / "lost+found").mkdir()


def nothing_is_special(patch, volume):
  pass


EMPTY = pytest.mark.parametrize(
  "so",
  [nothing_is_special, the_parent_is_not_writable, it_is_a_volume,
   it_cannot_be_replaced, it_is_a_new_file_system],
)  # fmt: skip


@EMPTY
def test_an_empty_folder_is_filled(tmp_path, monkeypatch, so):
  volume = tmp_path / "volume"
  volume.mkdir()
  so(monkeypatch, volume)
  with new_folder(volume) as part:
    fill(part)
    assert names(volume) == [] or part.parent == volume
  assert names(volume) == WHOLE
  assert os.listdir(tmp_path) == ["volume"]
  assert not list(volume.glob(".part*"))
  with pytest.raises(UserError, match="exists and is not empty"):
    with new_folder(volume):
      pass


@EMPTY
def test_nothing_is_left_of_a_failure(tmp_path, monkeypatch, so):
  volume = tmp_path / "volume"
  volume.mkdir()
  so(monkeypatch, volume)
  with pytest.raises(KeyError), new_folder(volume) as part:
    fill(part)
    raise KeyError
  assert set(os.listdir(volume)) <= {"lost+found"}
  assert os.listdir(tmp_path) == ["volume"]


@EMPTY
def test_what_appeared_meanwhile_stays(tmp_path, monkeypatch, so):
  volume = tmp_path / "volume"
  volume.mkdir()
  so(monkeypatch, volume)
  with pytest.raises(UserError, match="appeared while"):
    with new_folder(volume) as part:
      fill(part)
      (volume / "config.json").write_text("theirs")
  assert names(volume) == ["config.json"]
  assert (volume / "config.json").read_text() == "theirs"


def test_a_link_to_an_empty_folder_is_filled(tmp_path):
  (tmp_path / "real").mkdir()
  (tmp_path / "link").symlink_to("real")
  with new_folder(tmp_path / "link") as part:
    fill(part)
  assert (tmp_path / "link").is_symlink()
  assert names(tmp_path / "real") == WHOLE


def test_a_folder_that_cannot_be_made(tmp_path):
  (tmp_path / "file").write_text("")
  for path in (tmp_path / "file", tmp_path / "file" / "below"):
    with pytest.raises(UserError) as error, new_folder(path):
      pass
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_empty_is_said_in_one_place(tmp_path):
  assert folder_lib.is_vacant(tmp_path)
  assert folder_lib.is_vacant(tmp_path / "new")
  (tmp_path / "dangling").symlink_to("nowhere")
  assert not folder_lib.is_vacant(tmp_path / "dangling")
  assert not folder_lib.is_vacant(tmp_path)
