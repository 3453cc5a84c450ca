"""What fails outside of mtpjax is one line, with the thing and the way out."""

import errno
import io
import json
import os
import re
import resource
import signal
import sys

import numpy as np
import pytest

from mtpjax import cli
from mtpjax.cli import built_in, command, failures


@pytest.fixture
def ends(monkeypatch, capsys):
  """Runs a command that does `action`; returns (status, standard error)."""

  def run(action, *argv):
    monkeypatch.setattr(built_in, "_list", lambda args, console: action())
    capsys.readouterr()
    status = cli.main([*argv, "list"])
    return status, capsys.readouterr().err

  return run


@pytest.fixture
def line(ends):
  """Runs a command that fails at `action`; returns its one line."""

  def run(action):
    status, text = ends(action)
    assert status == 2 and text.count("\n") == 1, text
    assert text.startswith("mtpjax: error: ")
    return text.removeprefix("mtpjax: error: ").strip()

  return run


def raising(error):
  def action():
    raise error

  return action


def test_every_error_of_the_system_names_its_path(line):
  for number in sorted(errno.errorcode):
    said = line(raising(OSError(number, os.strerror(number), "/some/[file]")))
    assert said.startswith("/some/[file]: ")
    assert len(said) > len("/some/[file]: ")


def test_what_stands_in_the_way_is_named(line, tmp_path):
  (tmp_path / "file").touch()
  for action in (
    lambda: (tmp_path / "file" / "x").read_text(),
    lambda: (tmp_path / "file" / "x").mkdir(parents=True),
    lambda: (tmp_path / "file").mkdir(exist_ok=True),
  ):
    said = line(action)
    assert f"{tmp_path}/file is a file where a folder must be" in said
  assert "a folder; give the path of a file" in line(tmp_path.read_text)
  long = tmp_path / ("a" * 300)
  said = line(long.touch)
  assert "too long" in said and len(said) < 300
  os.symlink("loop", tmp_path / "loop")
  assert "circle" in line((tmp_path / "loop").read_text)


def test_a_full_disk_names_the_file_that_was_open(line, tmp_path):
  path = tmp_path / "figures"

  def write(path=path):
    with open(path, "w") as file:
      file.write("a" * 100_000)

  def write_by_numpy():
    np.zeros(100_000).tofile(path)

  limit = resource.getrlimit(resource.RLIMIT_FSIZE)
  for action in (write, lambda: path.write_text("a" * 100_000), write_by_numpy):
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limit[1]))
    try:
      said = line(action)
    finally:
      resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    if action is not write_by_numpy:
      assert said.startswith(f"{path}: ")
  said = line(lambda: write("/dev/full"))
  assert said.startswith("/dev/full: no space")


def test_too_many_open_files(line, tmp_path):
  (tmp_path / "file").touch()
  limit = resource.getrlimit(resource.RLIMIT_NOFILE)

  def open_many():
    kept = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, limit[1]))
    try:
      while True:
        kept.append(open(tmp_path / "file"))
    finally:
      resource.setrlimit(resource.RLIMIT_NOFILE, limit)
      for file in kept:
        file.close()

  said = line(open_many)
  assert f"{tmp_path}/file: too many open files" in said
  assert "ulimit -n" in said


@pytest.mark.parametrize(
  "error, words",
  [
    (MemoryError(), ["out of memory"]),
    (MemoryError("Unable to allocate 7.28 TiB for an array"), ["7.28 TiB"]),
    (RuntimeError("I/O error: No space (os error 28)"), ["no space is left"]),
    (ValueError('writing "/a/b": x [OS error 28: ENOSPC]'),
     ["/a/b: no space is left"]),
    (UnicodeDecodeError("utf-8", b"a\xff", 1, 2, "x"), ["byte 1", "UTF-8"]),
    (UnicodeEncodeError("utf-8", "a\ud800", 1, 2, "x"), ["\\ud800"]),
    (json.JSONDecodeError("x", "{", 1), ["not valid JSON"]),
    (ValueError("embedded null byte"), ["NUL"]),
  ],
)  # fmt: skip
def test_what_is_no_bug_is_one_line(line, error, words):
  said = line(raising(error))
  for word in words:
    assert word in said


def test_memory_of_a_device(line):
  import jax

  text = "RESOURCE_EXHAUSTED: Out of memory allocating 123000000000 bytes."
  said = line(raising(jax.errors.JaxRuntimeError(text)))
  assert "out of memory (123.00 GB" in said and "smaller" in said


def test_advice_names_options_that_there_are():
  parsers = command.build_parser()._subparsers._group_actions[0].choices
  for name, advice in failures._SMALLER.items():
    for option in re.findall(r"--[a-z.-]+", advice):
      assert option in parsers[name]._option_string_actions, (name, option)


def test_a_bug_keeps_its_traceback_and_says_so(ends):
  status, text = ends(raising(ZeroDivisionError("of mine")))
  *traceback, last = text.splitlines()
  assert status == 1
  assert traceback[0].startswith("Traceback")
  assert "ZeroDivisionError: of mine" in traceback
  assert last.startswith("mtpjax: error: this is a bug")


def test_a_reader_that_leaves_ends_it_quietly(ends, monkeypatch):
  assert ends(raising(BrokenPipeError())) == (128 + signal.SIGPIPE, "")


def test_a_line_stays_one_and_shows_what_it_holds(line):
  said = line(raising(OSError(errno.ENOENT, "", "two\nlines\x1b[31m\udcff")))
  assert said.startswith("two lines\\x1b[31m\\udcff: ")


def test_a_full_standard_output(monkeypatch, capsys):
  with open("/dev/full", "w") as full:
    monkeypatch.setattr(sys, "stdout", full)
    assert cli.main(["list"]) == 2
    monkeypatch.setattr(sys, "stdout", io.StringIO())
  assert "standard output: no space" in capsys.readouterr().err


def test_figures_that_cannot_be_written_are_printed(
  monkeypatch, capsys, tmp_path
):
  figures = {"loss": float("nan"), "rows": [1, 2.5]}
  with pytest.raises(OSError):
    command._write_figures(tmp_path, figures)
  known = {"loss": None, "rows": [1, 2.5]}
  assert json.loads(capsys.readouterr().out) == known
  command._write_figures(tmp_path / "a" / "b.json", figures)
  assert json.loads((tmp_path / "a" / "b.json").read_text()) == known
