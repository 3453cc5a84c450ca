"""Folders and files that appear complete or not at all, wherever they lie."""

import contextlib
import errno
import glob
import os
import pathlib
import shutil
import socket
from collections.abc import Iterator, Sequence

from mtpjax.errors import UserError

_MARK = ".part-"
# Names who fills the folder: its host, then what it is moving up to its place.
_OWNER = ".owner"
# What a file system puts into a volume of its own.
_OF_VOLUMES = {"lost+found"}


@contextlib.contextmanager
def new_folder(
  path: str | pathlib.Path, last: str, way_out: str = "take another folder"
) -> Iterator[pathlib.Path]:
  """Gives a folder to fill, which becomes `path` if nothing was raised.

  Where `path` is not there the folder lies beside it, as PATH.part-PID, and is
  renamed. An empty folder may be a mounted volume, or lie where nothing else
  can be made, and has owners and rights of its own: it is filled from within,
  the file `last` after everything else. What processes that were killed have
  left is removed.

  Args:
    path: no such thing, or an empty folder.
    last: name of the file whose presence says that the folder is complete.
    way_out: ends the errors.

  Yields:
    The folder to fill; gone afterwards in any case.

  Raises:
    UserError: `path` exists, before or after it was filled, or cannot be made.
  """
  path = pathlib.Path(path)
  whole = path.absolute()
  missing = [p for p in whole.parents if not os.path.lexists(p)]
  with _explained(path, "cannot be made", way_out):
    _remove_leftovers(whole, last)
    if whole.is_symlink() and not whole.exists():
      raise UserError(
        f"{path}: is a broken link (to {os.readlink(whole)}); mend or delete "
        f"it, or {way_out}"
      )
    is_within = whole.is_dir()
    if whole.exists() and not (is_within and not _contents(whole)):
      raise UserError(f"{path}: exists and is not empty; {way_out}")
  name = f"{_MARK}{os.getpid()}"
  part = whole / name if is_within else whole.with_name(whole.name + name)
  try:
    with _explained(path, "cannot be made", way_out):
      part.mkdir(parents=True)
      (part / _OWNER).write_text(f"{socket.gethostname()}\n")
    yield part
    with _explained(path, "appeared while it was being made", way_out):
      if is_within:
        _move_up(part, whole, last)
      else:
        (part / _OWNER).unlink()
        # Atomic; replaces an empty folder and refuses any other.
        part.rename(whole)
  finally:
    shutil.rmtree(part, ignore_errors=True)
    for parent in missing:
      with contextlib.suppress(OSError):  # it is not empty: all went well
        parent.rmdir()


@contextlib.contextmanager
def whole_file(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """Gives a file to write, which becomes `path` if nothing was raised.

  Until then `path` is as it was, and what was begun is gone afterwards.

  Args:
    path: a file, or no such thing.

  Yields:
    The file to write, which lies beside it.

  Raises:
    OSError: it cannot be put in the place of `path`.
  """
  path = path.absolute()  # "." has no name of its own
  part = path.with_name(f"{path.name}{_MARK}{os.getpid()}")
  try:
    yield part
    part.replace(path)
  finally:
    with contextlib.suppress(OSError):
      part.unlink()


@contextlib.contextmanager
def _explained(path: pathlib.Path, what: str, way_out: str) -> Iterator[None]:
  try:
    yield
  except OSError as error:
    raise UserError(f"{path}: {what} ({error.strerror}); {way_out}") from error


def _contents(folder: pathlib.Path) -> set[str]:
  return set(os.listdir(folder)) - _OF_VOLUMES


def _move_up(part: pathlib.Path, whole: pathlib.Path, last: str) -> None:
  """Moves what is in `part` into the folder around it, or nothing of it."""
  if _contents(whole) != {part.name}:
    raise FileExistsError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
  names = sorted(set(os.listdir(part)) - {_OWNER}, key=lambda n: (n == last, n))
  with open(part / _OWNER, "a") as owner:
    owner.write("".join(f"{name}\n" for name in names))
  moved: list[str] = []
  try:
    for name in names:
      moved.append(name)
      (part / name).rename(whole / name)
  except BaseException:
    _remove(whole, moved)
    raise


def _remove(folder: pathlib.Path, names: Sequence[str]) -> None:
  for name in names:
    if (folder / name).is_dir():
      shutil.rmtree(folder / name, ignore_errors=True)
    else:
      (folder / name).unlink(missing_ok=True)


def _remove_leftovers(whole: pathlib.Path, last: str) -> None:
  """Removes what processes that are gone were making of this folder."""
  if whole.parent.is_dir():
    for part in whole.parent.glob(f"{glob.escape(whole.name)}{_MARK}*"):
      if _owner_is_gone(part):
        shutil.rmtree(part, ignore_errors=True)
  if whole.is_dir() and not (whole / last).exists():
    for part in whole.glob(f"{_MARK}*"):
      if _owner_is_gone(part):
        # What it was moving up when it was killed is nothing by itself.
        _remove(whole, _owner(part)[1:])
        shutil.rmtree(part, ignore_errors=True)


def _owner(part: pathlib.Path) -> list[str]:
  try:
    return (part / _OWNER).read_text().split("\n")[:-1]
  except OSError:
    return []


def _owner_is_gone(part: pathlib.Path) -> bool:
  pid = part.name.rpartition(_MARK)[2]
  if not part.is_dir() or not pid.isdecimal():
    return False
  # Who is alive on another machine, this one can't tell.
  if _owner(part)[:1] not in ([], [socket.gethostname()]):
    return False
  if int(pid) == os.getpid():
    return True
  try:
    os.kill(int(pid), 0)
  except (ProcessLookupError, OverflowError):
    return True
  except PermissionError:
    pass
  return False
