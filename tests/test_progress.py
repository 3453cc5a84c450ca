"""Progress on a terminal and in a pipe; no test waits for the clock."""

import io
import re

import pytest
import rich.console

from mtpjax import progress as progress_lib
from mtpjax.progress import Progress


def pipe():
  return rich.console.Console(file=io.StringIO())


def test_a_pipe_gets_lines_with_the_time_left(monkeypatch):
  monkeypatch.setattr(progress_lib, "LINE_SECS", 0.01)
  console = pipe()
  with Progress(console, "measuring [a]", total=4, done=1) as progress:
    progress.update(2)
    while "left" not in console.file.getvalue():
      pass
  line = console.file.getvalue().split("\n")[0]
  assert re.fullmatch(r"measuring \[a\]: 2 of 4, \d+ s, about \d+ s left", line)


def test_what_is_over_soon_writes_nothing_in_a_pipe():
  console = pipe()
  with Progress(console, "loading"):
    pass
  assert console.file.getvalue() == ""


def test_a_terminal_shows_it_and_is_clean_afterwards():
  console = rich.console.Console(
    file=io.StringIO(), force_terminal=True, width=80
  )
  with Progress(console, "loading [b]", total=3) as progress:
    progress.update(1, "compiling [c]")
    progress._bar.refresh()
  text = console.file.getvalue()
  assert "compiling [c]" in text and "1/3" in text
  assert text.endswith("\x1b[2K")  # the line is erased


def test_it_ends_when_the_work_fails():
  console = pipe()
  with pytest.raises(ValueError), Progress(console, "loading") as progress:
    raise ValueError
  assert not progress._writer.is_alive()
