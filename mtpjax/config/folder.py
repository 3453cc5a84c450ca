"""Folders that appear complete or not at all."""

import contextlib
import errno
import os
import pathlib
import shutil
from collections.abc import Iterator

from mtpjax.errors import UserError

# What a new file system has in it.
_NOTHING = {"lost+found"}

# Of a rename onto a mounted folder, or one of another owner in a shared folder.
_CANNOT_REPLACE = (errno.EBUSY, errno.EXDEV, errno.EPERM, errno.EACCES)


def is_vacant(path: pathlib.Path) -> bool:
  """Whether a folder may be made at `path`: nothing is there, or it is empty.

  Args:
    path: anything; a symbolic link counts as what it leads to.
  """
  if not path.is_dir():
    return not os.path.lexists(path)
  return all(entry.name in _NOTHING for entry in path.iterdir())


@contextlib.contextmanager
def new_folder(path: str | pathlib.Path) -> Iterator[pathlib.Path]:
  """Gives a folder to fill, which becomes `path` if nothing was raised.

  It lies beside `path`, as PATH.part-PID, and takes its place at once. Where
  that cannot be (`path` is an empty folder that is a mounted volume, or lies in
  a folder that is not writable) it lies in it, as .part-PID, and what is in it
  is moved up at the end, one by one.

  Args:
    path: must not exist yet, or be an empty folder.

  Yields:
    The folder to fill.

  Raises:
    UserError: `path` exists, before or after it was filled, or cannot be made.
  """
  path = pathlib.Path(path)
  if not is_vacant(path):
    raise UserError(f"{path}: exists and is not empty; take another folder")
  # Through links: what is put in place must not replace one.
  whole = path.resolve()
  try:
    part = _make_part(whole)
  except OSError as error:
    raise UserError(
      f"{path}: cannot be made ({error.strerror}); take another folder"
    ) from error
  try:
    yield part
    try:
      _put_in_place(part, whole)
    except OSError as error:
      raise UserError(
        f"{path}: appeared while it was being made ({error.strerror}); take "
        "another folder"
      ) from error
  finally:
    shutil.rmtree(part, ignore_errors=True)


def _make_part(whole: pathlib.Path) -> pathlib.Path:
  """Makes the folder to fill, beside `whole` or in it; raises OSError."""
  beside = whole.with_name(f"{whole.name}.part-{os.getpid()}")
  inside = whole / f".part-{os.getpid()}"
  if whole.is_dir() and (os.path.ismount(whole) or list(whole.iterdir())):
    inside.mkdir()
    return inside
  shutil.rmtree(beside, ignore_errors=True)
  try:
    beside.mkdir(parents=True)
    return beside
  except OSError:
    if not whole.is_dir():
      raise
    inside.mkdir()
    return inside


def _put_in_place(part: pathlib.Path, whole: pathlib.Path) -> None:
  if part.parent == whole:
    _move_up(part, whole)
    return
  try:
    # Atomic; replaces an empty folder and refuses any other.
    part.rename(whole)
  except OSError as error:
    if error.errno not in _CANNOT_REPLACE:
      raise
    inside = whole / f".part-{os.getpid()}"
    try:
      shutil.copytree(part, inside)
      _move_up(inside, whole)
    finally:
      shutil.rmtree(inside, ignore_errors=True)


def _move_up(part: pathlib.Path, whole: pathlib.Path) -> None:
  if any(e.name not in _NOTHING and e != part for e in whole.iterdir()):
    raise FileExistsError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
  # Folders first: the files beside them say what they are.
  for entry in sorted(part.iterdir(), key=lambda e: not e.is_dir()):
    entry.rename(whole / entry.name)
