"""Ctrl-C and signals to end: raised, so that what cleans up cleans up."""

import contextlib
import ctypes
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
# After which an interrupt that was lost, or came too early, is sent once more.
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

  A signal that is ignored stays so, as `nohup` asks for. While modules are
  imported it waits, unless it comes twice: extension modules may crash if they
  are interrupted as they begin. Outside the main thread, which alone may handle
  signals, nothing changes.

  Yields:
    The signals that have come, which tell, too, when a library has made
    another error of the exception, or the end came before it was raised.
  """
  received: list[int] = []
  waiting: list[int] = []
  timers: list[threading.Timer] = []

  def note(number: int, frame: FrameType | None) -> None:
    received.append(number)
    if _is_importing(frame) and not waiting:
      waiting.append(number)
      timers.append(_send_later(number, waiting.clear))
      return
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
  sys.unraisablehook = _send_again(hook, received, timers)
  try:
    yield received
  finally:
    for timer in timers:
      timer.cancel()
    sys.unraisablehook = hook
    for number, handler in previous.items():
      signal.signal(number, handler)


def _exception(number: int) -> BaseException:
  return KeyboardInterrupt() if number == signal.SIGINT else Terminated()


def _send_again(
  hook: Callable[[Any], Any],
  received: list[int],
  timers: list[threading.Timer],
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
      timers.append(_send_later(received[-1]))

  return again


def _send_later(
  number: int, and_before: Callable[[], None] = lambda: None
) -> threading.Timer:
  """Sends a signal to this process a little later."""

  def send() -> None:
    and_before()
    os.kill(os.getpid(), number)

  timer = threading.Timer(_AGAIN_SECS, send)
  timer.daemon = True
  timer.start()
  return timer


def _is_importing(frame: FrameType | None) -> bool:
  """Returns whether a command is importing modules where it was stopped."""
  while frame is not None:
    if frame.f_code.co_filename.startswith("<frozen importlib._bootstrap"):
      return True
    if frame.f_globals.get("__name__") == "mtpjax.cli.command":
      return False
    frame = frame.f_back
  return False


def end_at_once() -> None:
  """Makes a signal end the process at once: nothing is left to clean up.

  For the time in which the interpreter shuts down, where Python would print
  what was interrupted.
  """
  # If Ctrl-C came while an extension module ran Python, the interpreter notes
  # that nobody handled it, and would kill itself instead of returning a status.
  # It forgets that where the next program begins, be it an empty one.
  ctypes.pythonapi.PyRun_SimpleString(b"")

  def end(number: int, frame: FrameType | None) -> None:
    os.write(2, f"{line(number)}\n".encode())
    os._exit(status(number))

  if threading.current_thread() is threading.main_thread():
    for number in _ENDING:
      if signal.getsignal(number) is not signal.SIG_IGN:
        signal.signal(number, end)
