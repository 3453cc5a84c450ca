"""Folders that appear complete or not at all."""

import contextlib
import os
import pathlib
import shutil
from collections.abc import Iterator

from mtpjax.errors import UserError


@contextlib.contextmanager
def new_folder(path: str | pathlib.Path) -> Iterator[pathlib.Path]:
  """Gives a folder to fill, which becomes `path` if nothing was raised.

  Args:
    path: must not exist yet, or be an empty folder.

  Yields:
    A folder beside it, PATH.part-PID.

  Raises:
    UserError: `path` exists, before or after it was filled, or cannot be made.
  """
  path = pathlib.Path(path)
  if path.exists() and (not path.is_dir() or any(path.iterdir())):
    raise UserError(f"{path}: exists and is not empty; take another folder")
  whole = path.absolute()
  part = whole.with_name(f"{whole.name}.part-{os.getpid()}")
  shutil.rmtree(part, ignore_errors=True)
  try:
    part.mkdir(parents=True)
  except OSError as error:
    raise UserError(
      f"{path}: cannot be made ({error.strerror}); take another folder"
    ) from error
  try:
    yield part
    try:
      # Atomic; replaces an empty folder and refuses any other.
      part.rename(whole)
    except OSError as error:
      raise UserError(
        f"{path}: appeared while it was being made ({error.strerror}); take "
        "another folder"
      ) from error
  finally:
    shutil.rmtree(part, ignore_errors=True)
