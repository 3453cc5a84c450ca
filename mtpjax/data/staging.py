"""A folder that appears complete or not at all."""

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
_HOST = "host"
# What a file system puts into a volume of its own.
_OF_VOLUMES = {"lost+found"}


@contextlib.contextmanager
def staged(
  path: pathlib.Path, parts: Sequence[str], last: str
) -> Iterator[pathlib.Path]:
  """Gives a folder to fill, which becomes `path` if all goes well.

  Where `path` is not there the folder lies beside it, and is renamed. An empty
  folder may be a volume, or lie where nothing else may be made: it is filled
  from within, the file `last` after everything else. What processes that were
  killed have left is removed.

  Args:
    path: no such thing, or an empty folder.
    parts: names of the folders that will be in it.
    last: name of the file whose presence says that the folder is complete.

  Yields:
    The folder to fill; gone afterwards in any case.

  Raises:
    UserError: `path` is taken, or it cannot be written.
  """
  with _writing(path):
    missing = [p for p in (path, *path.parents) if not p.exists()]
    _remove_leftovers(path, parts, last)
    if path.is_symlink() and not path.exists():
      raise UserError(
        f"{path}: is a broken link (to {os.readlink(path)}); mend or delete "
        "it, or take another --data.path"
      )
    is_within = path.is_dir()
    if path.exists() and not is_within or is_within and _contents(path):
      raise UserError(
        f"{path}: exists and is not prepared data; take another --data.path"
      )
    part = (
      path / f"{_MARK}{os.getpid()}"
      if is_within
      else path.with_name(f"{path.name}{_MARK}{os.getpid()}")
    )
    try:
      part.mkdir(parents=True)
      (part / _HOST).write_text(socket.gethostname())
      yield part
      (part / _HOST).unlink()
      if is_within:
        _move_up(part, path, last)
      else:
        _rename(part, path)
    finally:
      shutil.rmtree(part, ignore_errors=True)
      for folder in missing[1:]:
        with contextlib.suppress(OSError):
          folder.rmdir()  # if it is empty


@contextlib.contextmanager
def _writing(path: pathlib.Path) -> Iterator[None]:
  """Turns what the system refuses into one line."""
  try:
    yield
  except OSError as error:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
      raise UserError(
        f"{path}: cannot be written ({error.strerror}); make room, or take "
        "another --data.path"
      ) from error
    cause = f"{error.filename}: " if error.filename is not None else ""
    raise UserError(
      f"{path}: cannot be written ({cause}{error.strerror}); take another "
      "--data.path"
    ) from error


def _contents(path: pathlib.Path) -> set[str]:
  return set(os.listdir(path)) - _OF_VOLUMES


def _remove_leftovers(
  path: pathlib.Path, parts: Sequence[str], last: str
) -> None:
  """Removes what processes that are gone were making of this folder."""
  if path.parent.is_dir():
    for part in path.parent.glob(f"{glob.escape(path.name)}{_MARK}*"):
      if _is_left_over(part):
        shutil.rmtree(part, ignore_errors=True)
  if path.is_dir() and not (path / last).exists():
    for part in path.glob(f"{_MARK}*"):
      if _is_left_over(part):
        # What it was moving up when it was killed is nothing by itself.
        for name in parts:
          shutil.rmtree(path / name, ignore_errors=True)
        shutil.rmtree(part, ignore_errors=True)


def _is_left_over(part: pathlib.Path) -> bool:
  pid = part.name.rpartition(_MARK)[2]
  if not part.is_dir() or not pid.isdecimal():
    return False
  host = part / _HOST
  # Who is alive on another machine, this one can't tell.
  if host.is_file() and host.read_text() not in ("", socket.gethostname()):
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


def _rename(part: pathlib.Path, path: pathlib.Path) -> None:
  try:
    # Atomic; replaces an empty folder and refuses any other.
    part.rename(path)
  except OSError as error:
    raise _appeared(path, error) from error


def _move_up(part: pathlib.Path, path: pathlib.Path, last: str) -> None:
  moved: list[pathlib.Path] = []
  try:
    for name in sorted(os.listdir(part), key=lambda name: name == last):
      (part / name).rename(path / name)
      moved.append(path / name)
  except BaseException as error:
    for there in moved:
      shutil.rmtree(there, ignore_errors=True)
    if isinstance(error, OSError):
      raise _appeared(path, error) from error
    raise


def _appeared(path: pathlib.Path, error: OSError) -> UserError:
  return UserError(
    f"{path}: appeared while it was being prepared ({error.strerror}); run "
    "`mtpjax prepare` again to see if it is the same"
  )
