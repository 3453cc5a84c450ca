"""The folder of prepared data: where it may lie, and what is left behind."""

import errno
import os
import pathlib
import socket
import subprocess
import sys

import pytest
from corpora import prepared, write_texts

from mtpjax.data import open_rows, packing
from mtpjax.data.rows import RowWriter
from mtpjax.errors import UserError


def fails(run, *words):
  with pytest.raises(UserError) as caught:
    run()
  message = str(caught.value)
  assert "\n" not in message
  for word in words:
    assert word in message, message


def contents(path):
  return {
    str(file.relative_to(path)): file.read_bytes()
    for file in path.rglob("*")
    if file.is_file()
  }


def dead_pid():
  with subprocess.Popen([sys.executable, "-c", ""]) as process:
    return process.pid


def test_an_empty_folder_is_filled_from_within(tmp_path, monkeypatch):
  """As one must where nothing may be made beside it, or it is a volume."""
  source = write_texts(tmp_path / "texts")
  prepared(tmp_path, sources=(source,), path=str(tmp_path / "plain"))
  volume = tmp_path / "volume"
  (volume / "lost+found").mkdir(parents=True)
  link = tmp_path / "link"
  link.symlink_to(volume)
  rename, made = pathlib.Path.rename, pathlib.Path.mkdir

  def only_within(act):
    def checked(self, *arguments, **options):
      if volume not in self.parents and link not in self.parents:
        raise PermissionError(errno.EACCES, "Permission denied", str(self))
      return act(self, *arguments, **options)

    return checked

  monkeypatch.setattr(pathlib.Path, "rename", only_within(rename))
  monkeypatch.setattr(pathlib.Path, "mkdir", only_within(made))
  for path in (volume, link):
    config, result = prepared(tmp_path, sources=(source,), path=str(path))
    assert contents(volume) == contents(tmp_path / "plain")
    assert {p.name for p in volume.iterdir()} == {
      "train", "validation", "fingerprint.json", "lost+found",
    }  # fmt: skip
    assert len(open_rows(path, "train")) == result["splits"]["train"]["rows"]
    for split in ("train", "validation"):
      for file in (volume / split).iterdir():
        file.unlink()
      (volume / split).rmdir()
    (volume / "fingerprint.json").unlink()


def test_a_failure_leaves_an_empty_folder_as_it_was(tmp_path, monkeypatch):
  source = write_texts(tmp_path / "texts")
  (tmp_path / "data").mkdir()
  rename = pathlib.Path.rename

  def stopped(self, target):
    if self.name == "validation":
      raise KeyboardInterrupt
    return rename(self, target)

  monkeypatch.setattr(pathlib.Path, "rename", stopped)
  with pytest.raises(KeyboardInterrupt):
    prepared(tmp_path, sources=(source,))
  assert list((tmp_path / "data").iterdir()) == []


def test_parents_made_for_nothing_are_removed(tmp_path):
  empty = write_texts(tmp_path / "empty", [""])
  path = tmp_path / "a/b/c"
  fails(lambda: prepared(tmp_path, sources=(empty,), path=str(path)), "no text")
  assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("is_within", [False, True])
def test_what_the_killed_left_is_removed(tmp_path, is_within):
  source = write_texts(tmp_path / "texts")
  data = tmp_path / "data"
  start = data / ".part-" if is_within else tmp_path / "data.part-"
  host = socket.gethostname()
  gone, alive, elsewhere = (
    pathlib.Path(f"{start}{pid}") for pid in (dead_pid(), os.getppid(), 10**7)
  )
  for folder, name in ((gone, host), (elsewhere, "another-machine")):
    (folder / "train").mkdir(parents=True)
    (folder / "host").write_text(name)
  alive.mkdir()
  if is_within:
    # Killed while it was moving the splits up. What is alive is in the way.
    (data / "train").mkdir()
    fails(lambda: prepared(tmp_path, sources=(source,)), "is not prepared data")
    (elsewhere / "host").write_text(host)  # pids end below that
    alive.rmdir()
  prepared(tmp_path, sources=(source,))
  assert not gone.exists()
  assert alive.exists() != is_within
  assert elsewhere.exists() != is_within


def test_where_nothing_can_be_written(tmp_path, monkeypatch):
  source = write_texts(tmp_path / "texts")
  file = tmp_path / "file"
  file.write_text("mine")
  way_out = "--data.path"
  for path in (file, file / "data", file / "below/data"):
    fails(
      lambda path=path: prepared(tmp_path, sources=(source,), path=str(path)),
      str(path), way_out,
    )  # fmt: skip
  (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
  fails(
    lambda: prepared(
      tmp_path, sources=(source,), path=str(tmp_path / "broken")
    ),
    "broken link", way_out,
  )  # fmt: skip
  long = str(tmp_path / ("x" * 250))
  fails(lambda: prepared(tmp_path, sources=(source,), path=long), long, way_out)
  before = sorted(tmp_path.iterdir())

  def full(self, rows):
    raise OSError(errno.ENOSPC, "No space left on device")

  monkeypatch.setattr(RowWriter, "append", full)
  fails(
    lambda: prepared(tmp_path, sources=(source,)),
    str(tmp_path / "data"), "No space left", "make room", way_out,
  )  # fmt: skip
  assert sorted(tmp_path.iterdir()) == before
  monkeypatch.undo()

  def refused(self, *arguments, **options):
    raise PermissionError(errno.EACCES, "Permission denied", str(self))

  monkeypatch.setattr(pathlib.Path, "mkdir", refused)
  fails(
    lambda: prepared(tmp_path, sources=(source,)),
    str(tmp_path / "data"), "Permission denied", way_out,
  )  # fmt: skip


def test_two_at_a_time_do_not_mix(tmp_path, monkeypatch):
  source = write_texts(tmp_path / "texts")
  whole = packing._fill_folder

  def overtaken(*arguments):
    monkeypatch.setattr(packing, "_fill_folder", whole)
    made = whole(*arguments)
    (tmp_path / "data/train").mkdir(parents=True)
    (tmp_path / "data/train/theirs").write_text("theirs")
    return made

  for is_there in (False, True):
    if is_there:
      (tmp_path / "data/train/theirs").unlink()
      (tmp_path / "data/train").rmdir()
    monkeypatch.setattr(packing, "_fill_folder", overtaken)
    fails(lambda: prepared(tmp_path, sources=(source,)), "appeared while")
    assert list(contents(tmp_path / "data")) == ["train/theirs"]
