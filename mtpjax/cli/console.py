"""The terminal: what is printed is printed as it is."""

import contextlib
import os
import sys
import threading
from typing import TextIO

import rich.console


class Console(rich.console.Console):
  """Prints texts as they are: most hold something of the user's.

  To rich, `[figures]` would be a style and `:key:` a picture; both vanish.
  """

  def __init__(self, stderr: bool = False):
    """Makes a console of standard output, or of standard error."""
    super().__init__(stderr=stderr, markup=False, emoji=False)

  def on_broken_pipe(self) -> None:
    """Leaves it to the command what it means that nobody reads on.

    Beside the main thread, which will find out itself, nothing happens.
    """
    if threading.current_thread() is threading.main_thread():
      raise


def print_any_character() -> None:
  """Lets the standard streams escape what their encoding does not have."""
  for stream in (sys.stdout, sys.stderr):
    # Those that tests and notebooks put there may be anything.
    with contextlib.suppress(AttributeError, ValueError, OSError):
      stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def fails(stream: TextIO | None) -> bool:
  """Returns whether what waits to be written to a stream cannot be."""
  try:
    if stream is not None:
      stream.flush()
  except OSError:
    return True
  except ValueError:  # closed before
    pass
  return False


def silence(stream: TextIO | None) -> None:
  """Lets what still waits for a stream that fails go nowhere."""
  with contextlib.suppress(AttributeError, ValueError, OSError):
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())  # type: ignore[union-attr]
    os.close(nowhere)
