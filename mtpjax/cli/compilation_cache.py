"""What JAX has compiled, kept for the next command.

    ~/.cache/mtpjax/compiled/<kind of processor>/

or below XDG_CACHE_HOME. JAX writes and reads the programs, one process at a
time by a lock, and drops those that were not used for longest. This decides
where, and whether: where nothing can be kept, nothing is, without a word.
"""

import contextlib
import hashlib
import os
import pathlib
import platform
import shutil
import time
import warnings
from collections.abc import Iterator

OFF = "MTPJAX_NO_COMPILATION_CACHE"
HELP = (
  "What has been compiled is kept in the folder mtpjax/compiled of the user's "
  "cache (XDG_CACHE_HOME, else ~/.cache), 512 MB at most per kind of "
  f"processor. {OFF}=1 keeps nothing; JAX_COMPILATION_CACHE_DIR=DIR keeps it "
  "in DIR, without bound."
)
# JAX looks at every entry before it adds one.
_MAX_BYTES, _MAX_ENTRIES = 512 << 20, 2000
_UNUSED_SECS = 60 * 24 * 3600
_LOCK_SECS = 5
_DAMAGED = ".damaged"
# What distinguishes processors, on x86 and on ARM; not the clock, or the cores.
_CPU_NAMES = (
  "vendor_id", "cpu family", "model", "model name", "stepping", "flags",
  "cpu implementer", "cpu architecture", "cpu variant", "cpu part",
  "cpu revision", "features",
)  # fmt: skip
_CPUINFO = pathlib.Path("/proc/cpuinfo")


@contextlib.contextmanager
def kept() -> Iterator[None]:
  """Keeps what is compiled within, by JAX's own settings of the environment.

  JAX reads them when it is imported; later they have no effect. What the user
  has set stays as it is.
  """
  folder = _folder()
  if folder is None:
    yield
    return
  ours = {
    "JAX_COMPILATION_CACHE_DIR": str(folder),
    "JAX_COMPILATION_CACHE_MAX_SIZE": str(_MAX_BYTES),
    # A command has a dozen small programs, as dear together as a large one.
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
  }
  added = {k: v for k, v in ours.items() if k not in os.environ}
  os.environ.update(added)
  try:
    with _no_word_of_damage(folder):
      yield
  finally:
    for name in added:
      os.environ.pop(name, None)


def _folder() -> pathlib.Path | None:
  """Returns the folder of this processor, in order; None if nothing is kept."""
  is_off = os.environ.get(OFF, "").lower() not in ("", "0", "false")
  if is_off or "JAX_COMPILATION_CACHE_DIR" in os.environ:
    return None
  import filelock  # `mtpjax --help` needs none

  try:
    # What is no absolute path counts as not given, says the standard.
    given = pathlib.Path(os.environ.get("XDG_CACHE_HOME", ""))
    caches = given if given.is_absolute() else pathlib.Path.home() / ".cache"
    if caches != given and not caches.parent.name:
      return None  # a home that is empty, or "/", is nobody's
    if not caches.is_absolute() or not _is_ours(caches):
      return None
    folder = caches / "mtpjax" / "compiled" / _processor()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _is_ours(folder):
      return None
    with filelock.FileLock(folder / ".lockfile", timeout=_LOCK_SECS):
      _tidy(folder)
    os.utime(folder)
    for other in folder.parent.iterdir():
      if time.time() - other.stat().st_mtime > _UNUSED_SECS:
        shutil.rmtree(other, ignore_errors=True)
  except (OSError, RuntimeError, NotImplementedError):
    # No home, a file in the way, not ours to write, no locks there, ...
    return None
  return folder


def _is_ours(path: pathlib.Path) -> bool:
  """Returns whether the user owns the first that is there: path or parent.

  Programs are code: they are run from nobody else's folder. And root, with
  another user's home (sudo), leaves nothing there that the user can't touch.
  """
  path = path.absolute()
  there = next(p for p in (path, *path.parents) if p.exists())
  return not hasattr(os, "geteuid") or there.stat().st_uid == os.geteuid()


def _processor() -> str:
  """Returns a name for what programs were compiled for.

  A home folder may be shared by machines, and a program that uses
  instructions the processor lacks ends the process.
  """
  lines = set()
  with contextlib.suppress(OSError):
    for line in _CPUINFO.read_text().splitlines():
      name = line.split(":")[0].strip().lower()
      if name in _CPU_NAMES:
        lines.add(" ".join(sorted(line.split())))
  if not lines:
    lines.add(f"{platform.processor()} of {platform.node()}")
  known = "\n".join([platform.system(), *sorted(lines)])
  return (
    f"{platform.machine()}-{hashlib.sha256(known.encode()).hexdigest()[:16]}"
  )


def _tidy(folder: pathlib.Path) -> None:
  """Drops what nobody can use any more; holds the lock."""
  names = set(os.listdir(folder))
  # The time of use is written after the program: without one it is in pieces,
  # a process ended or the disk was full.
  entries = {n.removesuffix("-cache") for n in names if n.endswith("-cache")}
  times = {n.removesuffix("-atime") for n in names if n.endswith("-atime")}
  gone = entries ^ times
  whole = entries & times
  if _DAMAGED in names:
    gone |= whole
    (folder / _DAMAGED).unlink()
  elif len(whole) > _MAX_ENTRIES:
    used = {key: (folder / f"{key}-atime").stat().st_mtime for key in whole}
    gone |= set(sorted(whole, key=used.__getitem__)[: len(whole) // 2])
  for key in gone:
    for suffix in ("-cache", "-atime"):
      (folder / f"{key}{suffix}").unlink(missing_ok=True)


@contextlib.contextmanager
def _no_word_of_damage(folder: pathlib.Path) -> Iterator[None]:
  """Notes where JAX warns of what it can't read; it compiles that itself."""
  with warnings.catch_warnings():
    shown = warnings.showwarning
    ours = "Error (reading|writing) persistent compilation cache"
    warnings.filterwarnings("always", message=ours)

    def note(message, *args, **kwargs):
      text = str(message)
      if "persistent compilation cache" not in text:
        shown(message, *args, **kwargs)
      elif text.startswith("Error reading"):
        # JAX never writes over an entry: the next command begins anew.
        with contextlib.suppress(OSError):
          (folder / _DAMAGED).touch()

    warnings.showwarning = note
    yield
