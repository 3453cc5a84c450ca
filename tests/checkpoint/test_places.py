"""Where a path lies that a run wrote down."""

import os

from mtpjax.checkpoint import places


def make(root, *names):
  for name in names:
    (root / name).mkdir(parents=True, exist_ok=True)


def found(root, path, run):
  return [
    os.path.relpath(place.resolve(), root) for place in places(path, root / run)
  ]


def test_from_here_first_and_then_from_the_run(tmp_path, monkeypatch):
  make(tmp_path, "here/runs/base", "work/runs/base", "work/runs/heads")
  monkeypatch.chdir(tmp_path / "here")
  assert found(tmp_path, "runs/base", "work/runs/heads") == [
    "here/runs/base", "work/runs/base"
  ]  # fmt: skip
  monkeypatch.chdir(tmp_path)
  assert found(tmp_path, "runs/base", "work/runs/heads") == ["work/runs/base"]


def test_a_run_and_its_base_may_have_moved_together(tmp_path, monkeypatch):
  make(tmp_path, "new/base", "new/heads")
  monkeypatch.chdir(tmp_path)
  for path in ("runs/base", "/old/place/runs/base", "../runs/base", "base"):
    assert found(tmp_path, path, "new/heads") == ["new/base"], path


def test_the_whole_path_goes_before_its_end(tmp_path, monkeypatch):
  make(tmp_path, "a/runs/base", "a/b/base", "a/b/heads")
  monkeypatch.chdir("/")
  assert found(tmp_path, "runs/base", "a/b/heads") == [
    "a/runs/base", "a/b/base"
  ]  # fmt: skip


def test_the_run_itself_and_what_is_no_folder_are_not_meant(tmp_path):
  make(tmp_path, "runs/heads")
  (tmp_path / "base").write_text("")
  assert found(tmp_path, "runs/heads", "runs/heads") == []
  assert found(tmp_path, "runs/base", "runs/heads") == []
