"""Folders that appear complete or not at all."""

import contextlib
import os
import pathlib
import shutil
from collections.abc import Iterator

from mtpjax.errors import UserError

# What makes a folder be something: it is moved in last.
_LAST = "config.json"


@contextlib.contextmanager
def new_folder(path: str | pathlib.Path) -> Iterator[pathlib.Path]:
  """Gives a folder to fill, whose contents become `path` if nothing was raised.

  A `path` that is not there is made in one step, from a folder beside it. One
  that is there, and empty, may be all that can be written to (the root of a
  mounted volume) and have owners and rights of its own: it stays, and is filled
  from a folder within it, config.json last.

  Args:
    path: must not exist yet, or be an empty folder.

  Yields:
    A folder beside or in it, PATH.part-PID or PATH/.part-PID.

  Raises:
    UserError: `path` exists, before or after it was filled, or cannot be made.
  """
  path = pathlib.Path(path)
  whole = path.absolute()
  is_there = os.path.lexists(whole)
  if is_there and not _is_empty(path):
    raise UserError(f"{path}: exists and is not empty; take another folder")
  name = f".part-{os.getpid()}"
  part = whole / name if is_there else whole.with_name(whole.name + name)
  made = [] if is_there else _missing_parents(whole)
  try:
    shutil.rmtree(part, ignore_errors=True)
    try:
      part.mkdir(parents=True)
    except OSError as error:
      raise UserError(
        f"{path}: cannot be made ({error.strerror}); take another folder"
      ) from error
    yield part
    try:
      if is_there:
        _fill(whole, part)
      else:
        # Atomic; replaces an empty folder and refuses any other.
        part.rename(whole)
    except OSError as error:
      raise UserError(
        f"{path}: appeared while it was being made ({error.strerror}); take "
        "another folder"
      ) from error
  finally:
    shutil.rmtree(part, ignore_errors=True)
    for parent in made:
      with contextlib.suppress(OSError):  # it is not empty: all went well
        parent.rmdir()


def _is_empty(path: pathlib.Path) -> bool:
  try:
    return path.is_dir() and not any(path.iterdir())
  except OSError as error:
    raise UserError(
      f"{path}: cannot be looked into ({error.strerror}); take another folder"
    ) from error


def _missing_parents(path: pathlib.Path) -> list[pathlib.Path]:
  """Returns the folders above a path that are not there, deepest first."""
  return [p for p in path.parents if not os.path.lexists(p)]


def _fill(folder: pathlib.Path, part: pathlib.Path) -> None:
  """Moves what is in `part` into the folder, all of it or nothing."""
  if [p.name for p in folder.iterdir()] != [part.name]:
    raise OSError(0, "Directory not empty")
  moved: list[pathlib.Path] = []
  try:
    for one in sorted(part.iterdir(), key=lambda p: (p.name == _LAST, p.name)):
      target = folder / one.name
      moved.append(target)
      one.rename(target)
  except BaseException:
    for target in moved:
      if target.is_dir():
        shutil.rmtree(target, ignore_errors=True)
      else:
        target.unlink(missing_ok=True)
    raise
