"""Errors that have no caller: those of threads, and of libraries' callbacks."""

import contextlib
import logging
import sys
import threading
from collections.abc import Callable
from typing import Any

from mtpjax.cli import failures, signals


def shorten() -> Callable[[], None]:
  """Prints what `failures.explain` explains in one line, not as a traceback.

  What waits for the thread or the callback fails, too, and is the error of the
  command; so are the tracebacks left out which libraries log of it.

  Returns:
    What makes it as it was.
  """
  # Imported, or its logger would be made here as one of the usual kind.
  import absl.logging

  loggers = absl.logging.get_absl_logger(), logging.getLogger("asyncio")
  hooks = sys.unraisablehook, threading.excepthook, sys.excepthook

  def in_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is None or not _tell(args.exc_value):
      hooks[1](args)

  def in_callback(args: Any) -> None:
    if args.exc_value is None or not _tell(args.exc_value):
      hooks[0](args)

  def of_import(kind: Any, error: BaseException, trace: Any) -> None:
    if not _tell(error):
      hooks[2](kind, error, trace)

  def has_no_traceback(record: logging.LogRecord) -> bool:
    return not record.exc_info

  def restore() -> None:
    sys.unraisablehook, threading.excepthook, sys.excepthook = hooks
    for logger in loggers:
      logger.removeFilter(has_no_traceback)

  sys.unraisablehook, threading.excepthook = in_callback, in_thread
  sys.excepthook = of_import
  for logger in loggers:
    logger.addFilter(has_no_traceback)
  return restore


def _tell(error: BaseException) -> bool:
  """Prints a line for an error that is known; returns whether it is."""
  # Where writing of many arrays fails, the first error ends the wait, and each
  # of the others is told to an event loop that is closed.
  if isinstance(error, RuntimeError) and "loop is closed" in str(error):
    return True
  # An extension module prints the signal that ended its import.
  if isinstance(error, KeyboardInterrupt | signals.Terminated):
    return True
  said = failures.explain(error)
  if said is None:
    return False
  with contextlib.suppress(OSError, ValueError):
    print(f"mtpjax: {failures.one_line(said)}", file=sys.stderr, flush=True)
  return True
