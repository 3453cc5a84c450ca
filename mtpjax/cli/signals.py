"""Ctrl-C and signals to end: raised, so that what cleans up cleans up."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SAID = {
  signal.SIGINT: "interrupted",
  signal.SIGTERM: "terminated",
  signal.SIGHUP: "hung up",
}
# After which an interrupt that was lost is sent once more.
_AGAIN_SECS = 0.05


class Terminated(BaseException):
  """A signal to end; what handles Ctrl-C does not take it for one."""


def line(number: int) -> str:
  """Returns what is said when a signal has ended a command."""
  return f"mtpjax: {_SAID[signal.Signals(number)]}"


def status(number: int) -> int:
  """Returns the exit status of a command that a signal has ended."""
  return 128 + number


@contextlib.contextmanager
def raised() -> Iterator[list[int]]:
  """Raises KeyboardInterrupt at Ctrl-C and `Terminated` at SIGTERM and SIGHUP.

  A signal that is ignored stays so, as `nohup` asks for. Outside the main
  thread, which alone may handle signals, nothing changes.

  Yields:
    The signals that have come, which tell, too, when a library has made
    another error of the exception.
  """
  received: list[int] = []

  def note(number: int, frame: FrameType | None) -> None:
    received.append(number)
    raise _exception(number)

  if threading.current_thread() is not threading.main_thread():
    yield received
    return
  previous = {
    number: signal.signal(number, note)
    for number in _ENDING
    if signal.getsignal(number) is not signal.SIG_IGN
  }
  hook = sys.unraisablehook
  sys.unraisablehook = _send_again(hook, received)
  try:
    yield received
  finally:
    sys.unraisablehook = hook
    for number, handler in previous.items():
      signal.signal(number, handler)


def _exception(number: int) -> BaseException:
  return KeyboardInterrupt() if number == signal.SIGINT else Terminated()


def _send_again(
  hook: Callable[[Any], Any], received: list[int]
) -> Callable[[Any], Any]:
  """Returns a hook that sends signals again which were raised in vain.

  What a handler raises within `__del__`, or in another call of the garbage
  collector's, Python prints and forgets.
  """

  def again(unraisable: Any) -> None:
    if not isinstance(unraisable.exc_value, KeyboardInterrupt | Terminated):
      hook(unraisable)
    elif received:
      # Not at once: it would be raised in here, and be lost again.
      send = threading.Timer(_AGAIN_SECS, os.kill, (os.getpid(), received[-1]))
      send.daemon = True
      send.start()

  return again


def end_at_once() -> None:
  """Makes a signal end the process at once: nothing is left to clean up.

  For the time in which the interpreter shuts down, where Python would print
  what was interrupted.
  """

  def end(number: int, frame: FrameType | None) -> None:
    os.write(2, f"{line(number)}\n".encode())
    os._exit(status(number))

  if threading.current_thread() is threading.main_thread():
    for number in _ENDING:
      if signal.getsignal(number) is not signal.SIG_IGN:
        signal.signal(number, end)
