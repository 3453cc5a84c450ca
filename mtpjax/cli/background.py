"""Errors that have no caller: those of threads, and of libraries' callbacks."""

import logging
import sys
import threading
from collections.abc import Callable
from typing import Any

from mtpjax.cli import failures, signals


def shorten() -> Callable[[], None]:
  """Leaves out what `failures.explain` explains.

  What waits for the thread or the callback fails, too, and is the error of the
  command, which is one line; so are the tracebacks left out which libraries
  log of it.

  Returns:
    What makes it as it was.
  """
  # Imported, or its logger would be made here as one of the usual kind.
  import absl.logging

  loggers = absl.logging.get_absl_logger(), logging.getLogger("asyncio")
  hooks = sys.unraisablehook, threading.excepthook, sys.excepthook

  def in_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is None or not _is_known(args.exc_value):
      hooks[1](args)

  def in_callback(args: Any) -> None:
    if args.exc_value is None or not _is_known(args.exc_value):
      hooks[0](args)

  def of_import(kind: Any, error: BaseException, trace: Any) -> None:
    if not _is_known(error):
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


def _is_known(error: BaseException) -> bool:
  """Whether an error is one that the command itself ends in."""
  # Where writing of many arrays fails, the first error ends the wait, and each
  # of the others is reported to an event loop that is closed.
  if isinstance(error, RuntimeError) and "loop is closed" in str(error):
    return True
  # An extension module prints the signal that ended its import.
  if isinstance(error, KeyboardInterrupt | signals.Terminated):
    return True
  return failures.explain(error) is not None
