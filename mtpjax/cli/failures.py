"""What went wrong outside of mtpjax, in one line: the thing and the way out."""

import errno
import io
import json
import os
import pathlib
import re
import sys
import traceback
from types import TracebackType
from typing import Any

from mtpjax.cli import console
from mtpjax.errors import UserError

_FULL = "no space is left there; free some, or give a path on another disk"
_ELSEWHERE = "give another path, or change its permissions"
_WAYS_OUT = {
  errno.ENOENT: "no such file or folder; check the path",
  errno.EACCES: f"permission denied; {_ELSEWHERE}",
  errno.EPERM: f"not permitted; {_ELSEWHERE}",
  errno.EROFS: "on a file system that is read-only; give another path",
  errno.ENOSPC: _FULL,
  errno.EDQUOT: f"the quota is used up: {_FULL}",
  errno.EFBIG: "too large for this file system, or for the limit of "
  "`ulimit -f`; give a path on another, or raise it",
  errno.ENOTDIR: "a file stands where a folder must be; give another path",
  errno.EEXIST: "is there already; give another path",
  errno.EISDIR: "a folder; give the path of a file",
  errno.ENOTEMPTY: "a folder that is not empty; give another path",
  errno.ENAMETOOLONG: "a name too long for this file system; give a shorter",
  errno.ELOOP: "symbolic links that lead in a circle; mend them",
  errno.EMFILE: "too many open files; raise the limit of `ulimit -n`",
  errno.ENFILE: "too many open files on this machine; close some programs",
}
# How libraries in other languages write a number of `errno`.
_FOREIGN = re.compile(r"os error (\d+)", re.IGNORECASE)
_NO_MEMORY = ("RESOURCE_EXHAUSTED", "Out of memory", "out of memory")
_BYTES = re.compile(r"(\d{5,}) ?(?:bytes|B\b)")
_LONGEST_PATH = 160
# What takes less memory, by command.
_SMALLER = {
  "prepare": "take fewer documents with --data.max-documents",
  "train": "lower --train.batch-size, raise --train.accumulation, or give "
  "--model.remat full",
  "generate": "lower --batch-size or --max-new-tokens",
  "calibrate": "lower --batches or --max-nodes",
  "evaluate": "lower --batch-size, or evaluate where there is more",
}


def explain(error: BaseException, command: str | None = None) -> str | None:
  """Returns what went wrong in one line, or None for what is a bug.

  Args:
    error: with the traceback it was raised with.
    command: the one that ran.
  """
  text = str(error)
  if isinstance(error, UserError):
    return text
  if isinstance(error, MemoryError) or _is_no_memory(error, text):
    smaller = _SMALLER.get(command or "", "take a smaller batch or model")
    return f"out of memory{_asked_for(text)}; {smaller}"
  if isinstance(error, OSError):
    return _of_system(error)
  if number := _FOREIGN.search(text):
    path = _written_in(text) or _path(error)
    return _with_path(path, _way_out(int(number[1]), "", path))
  if isinstance(error, UnicodeDecodeError):
    return _with_path(
      _path(error), f"byte {error.start} is not of UTF-8; convert the file"
    )
  if isinstance(error, UnicodeEncodeError):
    return _with_path(
      _path(error),
      f"{ascii(error.object[error.start : error.end])} is no character; "
      "correct the text that holds it",
    )
  if isinstance(error, json.JSONDecodeError):
    return _with_path(_path(error), f"not valid JSON ({text}); correct it")
  if isinstance(error, RecursionError) and "JSON" in text:
    return _with_path(_path(error), "JSON of too many levels; flatten it")
  if isinstance(error, ValueError) and "integer string conversion" in text:
    return _with_path(_path(error), "holds a number of too many digits")
  if isinstance(error, ValueError) and "embedded null" in text:
    return "a path holds a character NUL; give one without it"
  return None


def one_line(text: str) -> str:
  """Returns a text as one line, with what cannot be shown escaped."""
  parts = (part.strip() for part in text.splitlines())
  line = " ".join(part for part in parts if part)
  return "".join(
    c if c.isprintable() else c.encode("unicode_escape").decode("ascii")
    for c in line
  )


def report_bug(error: BaseException, version: str) -> None:
  """Prints a traceback, and below it whose mistake it is."""
  traceback.print_exception(error)
  print(
    f"mtpjax: error: this is a bug in mtpjax {version}, not a mistake of "
    "yours: please report it, with the lines above",
    file=sys.stderr,
  )


def _is_no_memory(error: BaseException, text: str) -> bool:
  return type(error).__name__ in ("JaxRuntimeError", "XlaRuntimeError") and any(
    words in text for words in _NO_MEMORY
  )


def _asked_for(text: str) -> str:
  """Returns " (so many GB were asked for)", or "" if the text has no size."""
  if size := _BYTES.search(text):
    return f" ({int(size[1]) / 1e9:,.2f} GB were asked for)"
  if size := re.search(r"allocate ([\d.]+ [KMGTPE]iB)", text):  # NumPy
    return f" ({size[1]} were asked for)"
  return ""


def _of_system(error: OSError) -> str:
  path = error.filename
  if isinstance(path, bytes):
    path = os.fsdecode(path)
  if path is None or isinstance(path, int):
    path = _path(error)
  if error.errno is None:  # of NumPy: "8 requested and 3 written"
    reason = f"cannot be written or read ({one_line(str(error))})"
  else:
    reason = _way_out(error.errno, error.strerror or "", path)
  return _with_path(path, reason)


def _way_out(number: int, reason: str, path: str | None) -> str:
  """Returns what an error number means, and what to do."""
  if path and number in (errno.ENOTDIR, errno.EEXIST, errno.ENOENT):
    for above in (pathlib.Path(path), *pathlib.Path(path).parents):
      if number != errno.ENOENT and os.path.isfile(above):
        return (
          f"{_shortened(str(above))} is a file where a folder must be; give "
          "another path"
        )
  if number in _WAYS_OUT:
    return _WAYS_OUT[number]
  return reason or os.strerror(number)


def _with_path(path: str | None, reason: str) -> str:
  return f"{_shortened(path)}: {reason}" if path else reason


def _shortened(path: str) -> str:
  if len(path) <= _LONGEST_PATH:
    return path
  half = _LONGEST_PATH // 2
  return f"{path[:half]}...{path[-half:]}"


def _written_in(text: str) -> str | None:
  """Returns the path that a message of a library names in quotes."""
  found = re.search(r"[\"'](/[^\"']+)[\"']", text)
  return found[1] if found else None


def _path(error: BaseException) -> str | None:
  """Returns the file that was at work when `error` was raised, if it shows.

  An error of an open file has no name: the innermost call that holds a file,
  or else a path, says.
  """
  for name, stream in (("output", sys.stdout), ("error", sys.stderr)):
    if isinstance(error, OSError) and console.fails(stream):
      return f"standard {name}"
  frames = []
  trace: TracebackType | None = error.__traceback__
  while trace is not None:
    frames.append(trace.tb_frame)
    trace = trace.tb_next
  for frame in reversed(frames):
    values = list(frame.f_locals.values())
    if frame.f_globals.get("__name__") == "rich.console":
      return "standard output"
    for value in values:
      if path := _name_of_file(value):
        return path
    for value in values:
      if isinstance(value, pathlib.PurePath):
        return str(value)
  return None


def _name_of_file(value: Any) -> str | None:
  name = getattr(value, "name", None) if isinstance(value, io.IOBase) else None
  return name if isinstance(name, str) and name[:1] != "<" else None
