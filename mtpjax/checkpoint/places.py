"""Where a path lies that a run wrote down, when folders or people have moved.

A run remembers paths as they were typed: relative to the folder it was started
in, or on a machine it has left since. The order of looking is

1. as it is: absolute, or from the current folder;
2. from the run and each folder above it, nearest first: a run that was started
   in /work as `--workdir runs/heads` finds its runs/base in /work, also when
   /work has another name by now;
3. the same with the path's first folders left out, one by one: next to a run
   that was moved with what it refers to, and alone.

Whoever looks checks what is found by its digest or fingerprint, so that what
merely has the right name is never taken.
"""

import contextlib
import pathlib
from collections.abc import Iterator


def places(
  path: str | pathlib.Path, run: str | pathlib.Path
) -> Iterator[pathlib.Path]:
  """Yields the folders a path may mean, each once and only if it is there.

  Args:
    path: as a run wrote it down.
    run: the run's work directory.

  Yields:
    Folders, in the order described above.
  """
  path, run = pathlib.Path(path), pathlib.Path(run).resolve()
  parts = path.parts[1:] if path.is_absolute() else path.parts
  candidates = [path]
  for start in range(len(parts)):
    rest = pathlib.Path(*parts[start:])
    candidates += [above / rest for above in (run, *run.parents)]
  seen = {run}
  for candidate in candidates:
    with contextlib.suppress(OSError):  # a folder that nobody may look into
      where = candidate.resolve()
      if where not in seen and where.is_dir():
        seen.add(where)
        yield candidate
