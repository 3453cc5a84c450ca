"""One writer at a time in a folder; readers are never asked.

The lock is the kernel's (flock), on a file in the folder: it ends with the
process that holds it, however that ends. On NFS it holds between machines,
too; on file systems that share no locks it holds on one machine at most.
"""

import contextlib
import fcntl
import json
import os
import pathlib
import socket
import time
from collections.abc import Callable, Iterator

import jax

from mtpjax.errors import UserError

NAME = "lock"


@contextlib.contextmanager
def lock(
  folder: pathlib.Path,
  what: str,
  way_out: str,
  say: Callable[[str], None],
) -> Iterator[None]:
  """Holds a folder for writing. Of several processes the first one does.

  Args:
    folder: must exist; holds the file `lock` meanwhile.
    what: what the folder is called in messages.
    way_out: what to do if it is held, as "give another --workdir".
    say: gets a line where the folder knows no locks.

  Yields:
    Nothing.

  Raises:
    UserError: another process holds it; says which, where and since when.
  """
  if jax.process_index() > 0:
    yield
    return
  path = folder / NAME
  try:
    descriptor = _take(path)
  except BlockingIOError as error:
    raise UserError(
      f"{what} {folder}: in use by {_holder(path)}; wait until it ends, or "
      f"{way_out}"
    ) from error
  except OSError as error:
    say(
      f"{what} {folder}: cannot be locked ({error.strerror}); see to it that "
      "nothing else writes there"
    )
    yield
    return
  try:
    yield
  finally:
    # Before the lock ends: whoever waits for this file finds out and makes
    # another.
    with contextlib.suppress(OSError):
      path.unlink()
    os.close(descriptor)


def _take(path: pathlib.Path) -> int:
  """Returns the descriptor that holds the lock; raises OSError."""
  while True:
    descriptor = _open(path)
    try:
      fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
      if _is_still_there(path, descriptor):
        holder = {
          "host": socket.gethostname(),
          "pid": os.getpid(),
          "since": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        }
        with contextlib.suppress(OSError):  # a full disk locks, too
          os.truncate(descriptor, 0)
          os.pwrite(descriptor, json.dumps(holder).encode(), 0)
        return descriptor
    except OSError:
      os.close(descriptor)
      raise
    os.close(descriptor)


def _open(path: pathlib.Path) -> int:
  try:
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
  except PermissionError:
    return os.open(path, os.O_RDONLY)  # another user's


def _is_still_there(path: pathlib.Path, descriptor: int) -> bool:
  """Whether the open file is the one at `path`: its holder may remove it."""
  try:
    return os.path.samestat(os.stat(path), os.fstat(descriptor))
  except FileNotFoundError:
    return False


def _holder(path: pathlib.Path) -> str:
  try:
    said = json.loads(path.read_text())
    return f"process {said['pid']} on {said['host']} since {said['since']}"
  except (OSError, ValueError, KeyError, TypeError):
    return "another process"
