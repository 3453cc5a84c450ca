"""Folders that appear complete or not at all."""

import os

import pytest

from mtpjax import staging
from mtpjax.errors import UserError


def new_folder(path):
  return staging.new_folder(path, "config.json")


def fill(part):
  (part / "config.json").write_text("{}")
  (part / "checkpoints").mkdir()
  (part / "checkpoints" / "0").write_text("weights")


def names(folder):
  return sorted(path.name for path in folder.iterdir())


def test_a_new_folder_is_made_in_one_step(tmp_path):
  with new_folder(tmp_path / "a" / "b") as part:
    fill(part)
    assert names(tmp_path / "a") == [part.name]
  assert names(tmp_path / "a") == ["b"]
  assert names(tmp_path / "a" / "b") == ["checkpoints", "config.json"]


def test_an_empty_folder_is_filled_where_it_is(tmp_path):
  """So may the root of a volume, beside which nothing can be made."""
  folder = tmp_path / "volume"
  folder.mkdir(mode=0o750)
  before = folder.stat()
  with new_folder(folder) as part:
    fill(part)
    assert part.parent == folder and names(tmp_path) == ["volume"]
    assert names(folder) == [part.name]
  assert names(folder) == ["checkpoints", "config.json"]
  assert (folder / "checkpoints" / "0").read_text() == "weights"
  after = folder.stat()
  assert (before.st_ino, before.st_mode) == (after.st_ino, after.st_mode)


def test_a_link_to_an_empty_folder_stays_a_link(tmp_path):
  (tmp_path / "disk").mkdir()
  (tmp_path / "link").symlink_to("disk")
  with new_folder(tmp_path / "link") as part:
    fill(part)
  assert (tmp_path / "link").is_symlink()
  assert names(tmp_path / "disk") == ["checkpoints", "config.json"]


@pytest.mark.parametrize("is_there", [False, True])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError, UserError])
def test_nothing_is_left_of_what_failed(tmp_path, is_there, error):
  folder = tmp_path / "a" / "b"
  if is_there:
    folder.mkdir(parents=True)
  with pytest.raises(error), new_folder(folder) as part:
    fill(part)
    raise error("stopped")
  assert names(tmp_path) == (["a"] if is_there else [])
  assert not is_there or names(folder) == []


def test_what_makes_it_a_run_comes_last_and_nothing_half(tmp_path, monkeypatch):
  folder, order = tmp_path / "run", []
  folder.mkdir()
  rename = type(folder).rename

  def note(path, target):
    order.append(path.name)
    if path.name == "config.json":
      raise KeyboardInterrupt
    return rename(path, target)

  monkeypatch.setattr(type(folder), "rename", note)
  with pytest.raises(KeyboardInterrupt), new_folder(folder) as part:
    fill(part)
  assert order == ["checkpoints", "config.json"]
  assert names(folder) == []


def test_what_appears_meanwhile_is_kept(tmp_path):
  (tmp_path / "run").mkdir()
  with (
    pytest.raises(UserError, match="appeared while"),
    new_folder(tmp_path / "run") as part,
  ):
    fill(part)
    (tmp_path / "run" / "mine").write_text("")
  assert names(tmp_path / "run") == ["mine"]


def test_what_is_no_empty_folder_is_refused(tmp_path):
  (tmp_path / "file").write_text("")
  (tmp_path / "lost").symlink_to("nowhere")
  for name, why in (
    ("file", "exists and is not empty"),
    ("lost", "is a broken link"),
    (".", "exists and is not empty"),
  ):
    with pytest.raises(UserError, match=why), new_folder(tmp_path / name):
      pass
  with pytest.raises(UserError, match="cannot be made"), new_folder(
    tmp_path / "file" / "below"
  ):  # fmt: skip
    pass
  assert names(tmp_path) == ["file", "lost"]
  assert os.readlink(tmp_path / "lost") == "nowhere"
