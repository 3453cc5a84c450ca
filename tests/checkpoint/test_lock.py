"""One writer in a folder, for as long as its process lives."""

import errno
import importlib
import json
import os
import signal
import subprocess
import sys

import pytest

from mtpjax.checkpoint import lock as take
from mtpjax.errors import UserError

lock_file = importlib.import_module("mtpjax.checkpoint.lock")

HOLDER = """
import pathlib, sys, time
from mtpjax.checkpoint import lock
with lock(pathlib.Path(sys.argv[1]), "folder", "", print):
  print("held", flush=True)
  time.sleep(600)
"""


def hold(folder, say=pytest.fail):
  return take(folder, "work directory", "give another --workdir", say)


def test_a_killed_holder_leaves_no_lock(tmp_path):
  child = subprocess.Popen(
    [sys.executable, "-c", HOLDER, tmp_path], stdout=subprocess.PIPE, text=True
  )
  try:
    assert child.stdout.readline() == "held\n"
    with pytest.raises(UserError) as error, hold(tmp_path):
      pass
    text = str(error.value)
    assert f"in use by process {child.pid} on " in text and "\n" not in text
  finally:
    child.send_signal(signal.SIGKILL)
    child.wait()
  child.stdout.close()
  assert (tmp_path / "lock").exists()  # a file without a lock is in no way
  with hold(tmp_path):
    holder = json.loads((tmp_path / "lock").read_text())
    assert holder["pid"] == os.getpid()
  assert os.listdir(tmp_path) == []


def test_the_lock_ends_with_the_block_whatever_happens(tmp_path):
  with pytest.raises(KeyError), hold(tmp_path):
    raise KeyError
  with hold(tmp_path):
    with pytest.raises(UserError, match=f"process {os.getpid()} "):
      with hold(tmp_path):
        pass
    assert (tmp_path / "lock").exists()
  with hold(tmp_path):
    pass


def test_a_file_that_its_holder_has_just_removed_is_made_anew(
  tmp_path, monkeypatch
):
  real = lock_file._open
  opened = []

  def removed_at_once(path):
    opened.append(real(path))
    if len(opened) == 1:
      path.unlink()
    return opened[-1]

  monkeypatch.setattr(lock_file, "_open", removed_at_once)
  with hold(tmp_path):
    with pytest.raises(UserError), hold(tmp_path):
      pass


@pytest.mark.parametrize("number", ["ENOTSUP", "ENOLCK", "EROFS"])
def test_a_file_system_without_locks_is_one_line(tmp_path, monkeypatch, number):
  def refuses(*args):
    code = getattr(errno, number)
    raise OSError(code, os.strerror(code))

  monkeypatch.setattr(lock_file.fcntl, "flock", refuses)
  lines = []
  with hold(tmp_path, lines.append):
    assert len(lines) == 1 and "cannot be locked" in lines[0]


def test_other_processes_of_a_job_do_not_lock(tmp_path, monkeypatch):
  monkeypatch.setattr(lock_file.jax, "process_index", lambda: 1)
  with hold(tmp_path), hold(tmp_path):
    assert os.listdir(tmp_path) == []
