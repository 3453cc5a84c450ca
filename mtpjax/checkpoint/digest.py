"""What was written, so that damage is noticed.

Nothing below us notices a flipped byte: it restores as a wrong weight. The
digest is a JSON file inside the step directory, so that a copy carries it:

  {"state/d/1efc6a...": {"bytes": 2518, "sha256": "9f86d0..."}, ...}
"""

import concurrent.futures
import hashlib
import json
import pathlib

from mtpjax import config as config_lib
from mtpjax import staging

NAME = "mtpjax_digest.json"

# SHA-256 runs at 1 to 2 GB/s per core; more readers than this help no disk.
_READERS = 4


def write(directory: pathlib.Path) -> None:
  """Writes the digest of all files under `directory` into it, atomically."""
  files = sorted(
    path
    for path in directory.rglob("*")
    if path.is_file() and path.name != NAME
  )
  with concurrent.futures.ThreadPoolExecutor(_READERS) as readers:
    entries = {
      path.relative_to(directory).as_posix(): {
        "bytes": path.stat().st_size,
        "sha256": sha256,
      }
      for path, sha256 in zip(files, readers.map(_sha256, files), strict=True)
    }
  with staging.whole_file(directory / NAME) as part:
    part.write_text(json.dumps(entries, indent=1) + "\n")


def exists(directory: pathlib.Path) -> bool:
  """Whether `directory` has a digest to verify it against."""
  return (directory / NAME).is_file()


def find_damage(directory: pathlib.Path, only: str | None = None) -> str:
  """Compares the files under `directory` with its digest.

  Files that the digest does not list are ignored. Sizes are compared before
  contents, which are read in full.

  Args:
    directory: a directory that has a digest; see `exists`.
    only: a file to be compared alone.

  Returns:
    The first damage found, in words; "" if there is none.
  """
  try:
    entries = config_lib.read_json(directory / NAME)
    sizes = {name: int(entry["bytes"]) for name, entry in entries.items()}
    sums = {name: str(entry["sha256"]) for name, entry in entries.items()}
  except (
    OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError,
  ):  # fmt: skip
    return f"{NAME} is not readable"
  if only is not None:
    sizes = {name: size for name, size in sizes.items() if name == only}
  for name, size in sizes.items():
    path = directory / name
    if not path.is_file():
      return f"{name} is missing"
    if path.stat().st_size != size:
      return f"{name} has {path.stat().st_size} bytes instead of {size}"
  paths = [directory / name for name in sizes]
  with concurrent.futures.ThreadPoolExecutor(_READERS) as readers:
    try:
      for name, found in zip(sizes, readers.map(_sha256, paths), strict=True):
        if found != sums[name]:
          return f"{name} has other contents than were written"
    except OSError as error:
      return f"{error.filename} is not readable ({error.strerror})"
  return ""


def _sha256(path: pathlib.Path) -> str:
  with path.open("rb") as file:
    return hashlib.file_digest(file, "sha256").hexdigest()
