"""What is shown: lines, and while something takes long a bar."""

import threading
import time
from typing import Any, Self

import rich.console
import rich.progress

# Between the lines that are written where there is no terminal.
LINE_SECS = 15.0


def print_line(console: rich.console.Console, text: str) -> None:
  """Prints a line as it is: neither wrapped, nor read as markup, nor coloured.

  Args:
    console: where it is printed.
    text: the line; it may hold paths, and those square brackets.
  """
  console.print(text, soft_wrap=True, markup=False, highlight=False)


class Progress:
  """Shows what is happening, for how long, and the time left where known.

      with Progress(console, "measuring", total=12) as progress:
        for n in range(12):
          ...
          progress.update(n + 1)

  On a terminal it is one line that moves and goes away at the end; in a pipe
  a line every `LINE_SECS`, and none for what is over before that. A console
  shows one at a time.
  """

  def __init__(
    self,
    console: rich.console.Console,
    text: str,
    total: int | None = None,
    done: int = 0,
  ):
    """Says what is about to happen; nothing is shown yet.

    Args:
      console: where it is shown.
      text: what is happening, as "compiling".
      total: units of work in all, such as steps; None where unknown.
      done: units that were done before.
    """
    self._console = console
    self._text = text
    self._total = total
    self._begun = self._done = done
    self._start = time.monotonic()
    self._bar: rich.progress.Progress | None = None
    self._is_over = threading.Event()
    self._writer: threading.Thread | None = None

  def __enter__(self) -> Self:
    self._start = time.monotonic()
    if self._console.is_terminal:
      self._bar = rich.progress.Progress(
        *self._columns(), console=self._console, transient=True
      )
      self._task = self._bar.add_task(
        self._text, total=self._total, completed=self._done
      )
      self._bar.start()
    else:
      # The thread that works may be inside XLA for minutes.
      self._writer = threading.Thread(target=self._write_lines, daemon=True)
      self._writer.start()
    return self

  def __exit__(self, *_: Any) -> None:
    self._is_over.set()
    if self._bar is not None:
      self._bar.stop()
    if self._writer is not None:
      self._writer.join()

  def update(self, done: int | None = None, text: str | None = None) -> None:
    """Notes units done so far, and what is happening now; None keeps either."""
    if done is not None:
      self._done = done
    if text is not None:
      self._text = text
    if self._bar is not None:
      self._bar.update(self._task, completed=self._done, description=self._text)

  def line(self) -> str:
    """Returns the line of this moment, as a pipe gets it."""
    secs = time.monotonic() - self._start
    line = self._text
    if self._total is not None:
      line += f": {self._done:,} of {self._total:,}"
    line += f", {secs:.0f} s"
    new = self._done - self._begun
    if self._total is not None and new > 0:
      left = secs * (self._total - self._done) / new
      line += f", about {left:.0f} s left"
    return line

  def _columns(self) -> list[rich.progress.ProgressColumn]:
    # What is shown may hold square brackets: paths do.
    text = rich.progress.TextColumn("{task.description}", markup=False)
    elapsed = rich.progress.TimeElapsedColumn()
    if self._total is None:
      return [rich.progress.SpinnerColumn(), text, elapsed]
    return [
      text,
      rich.progress.BarColumn(),
      rich.progress.MofNCompleteColumn(),
      elapsed,
      rich.progress.TextColumn("left"),
      rich.progress.TimeRemainingColumn(),
    ]

  def _write_lines(self) -> None:
    while not self._is_over.wait(LINE_SECS):
      print_line(self._console, self.line())
