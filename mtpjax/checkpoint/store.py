"""A directory of checkpoints: saved in the background, restored verified.

Orbax is used by this file alone. Of its v1 interface only the
plain functions are used: its step manager keeps a list of its own, in which
any folder with a number for a name is a step, and skips saves silently.

  runs/first/checkpoints/
    40/                            a step: 40 steps were completed
      state/, _CHECKPOINT_METADATA   Orbax's
      mtpjax_digest.json             written once the step was read back
    50.orbax-checkpoint-tmp/       being written, or left by a killed process
    30.damaged-1795994497          moved aside: after a fallback, or because
                                   it was in the way of a save
"""

import concurrent.futures
import contextlib
import json
import logging
import os
import pathlib
import re
import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from orbax.checkpoint import v1 as ocp

from mtpjax import config as config_lib
from mtpjax.checkpoint import differences, digest, empty_leaves, read_back
from mtpjax.checkpoint.alias import Alias
from mtpjax.errors import UserError

_ITEM = "state"
_MARKER = "_CHECKPOINT_METADATA"
# How TensorStore writes a number of `errno`.
_SYSTEM_ERROR = re.compile(r"os_error_code='(\d+)'")
_LEFTOVER = re.compile(r"\d+\.(orbax-checkpoint-tmp|deleted)")


class Store:
  """The checkpoints of one run, in one directory, written by one run.

  With several processes every process makes the same calls; the directory
  must be one that all of them see.

  Saving works in the background, and so fails there: the failure is raised by
  the next `save`, `wait` or `close`. Use the store as a context manager, or
  call `close`; a process that ends without may lose its last checkpoint.
  """

  def __init__(self, directory: str | pathlib.Path, keep: int = 3):
    """Opens the directory; it is created by the first save.

    Args:
      directory: a path in a file system; mount a bucket to use one.
      keep: how many of the latest checkpoints stay; older ones are deleted.

    Raises:
      UserError: `keep` is below 1 or `directory` is a URL.
    """
    if "://" in str(directory):
      raise UserError(
        f"checkpoint directory {directory}: must be a path, not a URL; mount "
        "the bucket (gcsfuse) and give the path"
      )
    if keep < 1:
      raise UserError(f"checkpoints kept: {keep} must be at least 1")
    self._directory = pathlib.Path(directory).absolute()
    # What Orbax gets to see of it.
    self._alias = Alias(self._directory)
    self._keep = keep
    self._damaged: set[int] = set()
    self._pending: tuple[int, concurrent.futures.Future] | None = None
    self._thread = concurrent.futures.ThreadPoolExecutor(
      1, thread_name_prefix="checkpoint"
    )

  def save(
    self,
    step: int,
    state: Any,
    metadata: dict[str, Any],
    wait: bool = False,
    log: Callable[[str], None] = print,
  ) -> None:
    """Saves `state` as it is now; it may be donated or changed afterwards.

    Blocks while `state` is copied to host memory, and first for an earlier
    save that is still being written. The caller guarantees finite values.
    The save counts, and older steps are deleted, once its tree has been read
    back. What is in its way and no checkpoint is moved aside.

    Args:
      step: the number of completed steps.
      state: any pytree of arrays, sharded or not.
      metadata: what JSON can hold; comes back from `restore`.
      wait: return only when the checkpoint is complete.
      log: called with one line for everything worth a warning; perhaps from
        another thread.

    Raises:
      TypeError: `metadata` is not JSON.
      UserError: the step is not after the latest one, or saving failed: this
        time or in the background the time before.
    """
    json.dumps(metadata)
    self.wait()
    latest = self.latest_step()
    if latest is not None and step <= latest:
      raise UserError(
        f"checkpoint step {step}: not after the latest in {self._directory}, "
        f"which is {latest}; resume from there or take another directory"
      )
    context = ocp.Context()
    # Otherwise a directory that cannot be created leaves threads behind that
    # wait for it and fill the log.
    context.asynchronous.create_directories_asynchronously = False
    with self._explain_failure(step):
      if jax.process_index() == 0:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._make_room(step, log)
      self._damaged.clear()
      state = empty_leaves.take_out(state)
      tree = jax.tree.map(_abstract, state)
      with context, _quiet():
        written = ocp.save_async(
          self._alias.path / str(step),
          state,
          checkpointable_name=_ITEM,
          custom_metadata=metadata,
        )
    self._pending = (
      step, self._thread.submit(self._finish, step, written, tree, log)
    )  # fmt: skip
    if wait:
      self.wait()

  def wait(self) -> None:
    """Returns when nothing is being written.

    Raises:
      UserError: saving failed in the background.
    """
    if self._pending is not None:
      (step, future), self._pending = self._pending, None
      with self._explain_failure(step):
        future.result()

  def close(self) -> None:
    """Waits and ends the background thread; raises like `wait`."""
    try:
      self.wait()
    finally:
      self._thread.shutdown()
      self._alias.close()

  def __enter__(self) -> "Store":
    return self

  def __exit__(self, *_: Any) -> None:
    self.close()

  def steps(self) -> list[int]:
    """Returns the complete steps, rising, without those found damaged."""
    if not self._directory.is_dir():
      return []
    return sorted(
      int(path.name)
      for path in self._directory.iterdir()
      if _is_step(path) and int(path.name) not in self._damaged
    )

  def latest_step(self) -> int | None:
    """Returns the last of `steps`, None if there is none."""
    return max(self.steps(), default=None)

  def read_metadata(self, step: int | None = None) -> dict[str, Any]:
    """Returns the metadata of a step without reading or verifying its state.

    Args:
      step: None takes the latest step whose metadata is readable.

    Raises:
      UserError: no such checkpoint, or it is damaged.
    """
    candidates = (
      self.steps()[::-1] if step is None else [self._require_step(step)]
    )
    for candidate in candidates:
      with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        path = self._directory / str(candidate)
        metadata = config_lib.read_json(path / _MARKER)["custom_metadata"]
        is_whole = not digest.exists(path) or not digest.find_damage(
          path, only=_MARKER
        )
        if is_whole and isinstance(metadata, dict):
          return metadata
    if not candidates:
      raise self._nothing_to_restore()
    raise UserError(
      f"checkpoint {self._directory}/{candidates[0]}: its metadata is damaged; "
      f"{self._way_out(candidates[0])}"
    )

  def restore(
    self,
    abstract_state: Any,
    step: int | None = None,
    partial: bool = False,
    log: Callable[[str], None] = print,
  ) -> tuple[Any, dict[str, Any]]:
    """Reads a checkpoint onto any mesh, after verifying what was written.

    With `step=None` a damaged checkpoint is reported through `log` and the
    next older one is taken; the next `save` then moves the damaged ones aside.

    Args:
      abstract_state: a pytree of `jax.ShapeDtypeStruct` with shardings, whose
        structure the result has.
      step: the step to restore; None takes the latest that is sound.
      partial: `abstract_state` is only a part of what was stored, for example
        `{"params": {"lm": ...}}`; nothing else is read into memory.
      log: called with one line for everything worth a warning.

    Returns:
      The state, and the metadata given to `save`.

    Raises:
      UserError: there is no such checkpoint, it is damaged (with `step=None`:
        all are), or its tree is another: one table shows the differences.
        Also what `wait` raises.
    """
    self.wait()
    if step is not None:
      step = self._require_step(step)
      try:
        return self._read(step, abstract_state, partial, log)
      except _Damaged as damage:
        raise UserError(
          f"checkpoint {self._directory}/{step}: damaged "
          f"({self._alias.undo(str(damage))}); {self._way_out(step)}"
        ) from damage.__cause__
    # The list is read anew each time: a running training deletes old steps.
    while (latest := _from_first(self.latest_step())) is not None:
      try:
        return self._read(latest, abstract_state, partial, log)
      except _Damaged as damage:
        self._damaged.add(latest)
        log(
          f"WARNING: checkpoint {self._directory}/{latest} is DAMAGED "
          f"({self._alias.undo(str(damage))}); falling back to the next older "
          "one"
        )
    raise self._nothing_to_restore()

  def _read(
    self,
    step: int,
    abstract_state: Any,
    partial: bool,
    log: Callable[[str], None],
  ) -> tuple[Any, dict[str, Any]]:
    """Verifies, compares, then reads; raises `_Damaged` or `UserError`."""
    # Verified first: damage in the names or shapes would look like another
    # model, and what Orbax says about damaged files nobody wants to read.
    path = self._directory / str(step)
    is_verified = bool(_from_first(int(digest.exists(path))))
    if is_verified:
      damage = digest.find_damage(path) if jax.process_index() == 0 else ""
      if _from_first(int(bool(damage))):
        raise _Damaged(damage or "see the log of process 0")
    else:
      log(
        f"WARNING: checkpoint {path} is UNVERIFIED: it has no {digest.NAME} "
        "(the process ended right after writing it?)"
      )
    alias = self._alias.path / str(step)
    with _quiet(), _as_damage(lambda error: True):
      stored = read_back.metadata(alias, _ITEM)
    asked = empty_leaves.take_out(abstract_state)
    table = differences.table(stored.metadata, asked, partial)
    if table:
      raise UserError(
        f"checkpoint {path}: holds another tree than the one asked for:\n"
        f"{table}"
      )
    context = ocp.Context()
    context.pytree.loading.partial_load = partial
    with (
      context,
      _quiet(),
      _as_damage(lambda error: not is_verified or _is_from_storage(error)),
    ):
      state = ocp.load(alias, asked, checkpointable_name=_ITEM)
    return empty_leaves.put_back(state, abstract_state), stored.custom_metadata

  def _finish(
    self,
    step: int,
    written: Any,
    tree: Any,
    log: Callable[[str], None],
  ) -> None:
    """In the background: commit, read back, digest, then room for the next."""
    with _quiet():
      written.result()
    if jax.process_index() > 0:
      return
    path = self._directory / str(step)
    try:
      with _quiet():
        read_back.require(self._alias.path / str(step), _ITEM, tree)
    except Exception:
      self._move_aside(path)
      raise
    digest.write(path)
    try:
      self._delete_old()
    except OSError as error:
      log(
        f"WARNING: {error.filename}: cannot be deleted ({error.strerror}); "
        f"checkpoint {path} is saved"
      )

  def _delete_old(self) -> None:
    """Deletes steps beyond those kept, and what killed processes left."""
    leftovers = [
      path for path in self._directory.iterdir()
      if _LEFTOVER.fullmatch(path.name)
    ]  # fmt: skip
    for path in leftovers:
      _delete(path)
    for old in self.steps()[: -self._keep]:
      # Renamed first, so that a half-deleted step is not taken for one.
      path = self._directory / str(old)
      _delete(path.rename(path.with_suffix(".deleted")))

  def _make_room(self, step: int, log: Callable[[str], None]) -> None:
    """Moves damaged steps aside: after a fallback `step` may be one of them."""
    for damaged in self._damaged:
      path = self._directory / str(damaged)
      if path.exists():
        self._move_aside(path)
    path = self._directory / str(step)
    if path.is_dir() and not path.is_symlink() and not any(path.iterdir()):
      path.rmdir()
    elif os.path.lexists(path):
      log(
        f"WARNING: {path} is no complete checkpoint (an interrupted copy?); it "
        f"is DAMAGED, and was moved aside, to {self._move_aside(path).name}"
      )

  def _move_aside(self, path: pathlib.Path) -> pathlib.Path:
    return path.rename(path.with_suffix(f".damaged-{time.time_ns()}"))

  def _require_step(self, step: int) -> int:
    if step not in self.steps():
      raise UserError(
        f"checkpoint step {step}: not in {self._directory}, which has "
        f"{', '.join(map(str, self.steps())) or 'no checkpoint'}"
      )
    return step

  def _way_out(self, step: int) -> str:
    others = [other for other in self.steps() if other != step]
    if others:
      return f"other steps there: {', '.join(map(str, others))}"
    return "no other step is there; start again in a new directory"

  def _nothing_to_restore(self) -> UserError:
    if self._damaged:
      damaged = ", ".join(map(str, sorted(self._damaged)))
      return UserError(
        f"checkpoint directory {self._directory}: every checkpoint is damaged "
        f"({damaged}); restore a copy of it or start again in a new directory"
      )
    what = "no checkpoint in it" if self._directory.is_dir() else "not there"
    return UserError(
      f"checkpoint directory {self._directory}: {what}; check the path or "
      "train first"
    )

  @contextlib.contextmanager
  def _explain_failure(self, step: int) -> Iterator[None]:
    earlier: list[int] = []
    try:
      yield
    except Exception as error:
      # A directory that cannot be read has no steps to go on from.
      with contextlib.suppress(OSError):
        earlier = [other for other in self.steps() if other != step]
      then = f"goes on from step {max(earlier)}" if earlier else "begins again"
      raise UserError(
        f"checkpoint {self._directory}/{step}: saving failed ("
        f"{self._alias.undo(_reason(error))}); see that there is room and that "
        f"the folder can be written to: the same command then {then}"
      ) from error


class _Damaged(Exception):
  """A checkpoint that must not be used; says why."""


@contextlib.contextmanager
def _as_damage(is_damage: Callable[[Exception], bool]) -> Iterator[None]:
  """Takes errors for damage.

  In a verified checkpoint an error may be something else, such as a device out
  of memory, and an older checkpoint would not help.
  """
  failure = None
  try:
    yield
  except Exception as error:
    if not is_damage(error):
      raise
    failure = error
  if _fails_anywhere(failure is not None):
    reason = _first_line(failure) if failure else "in another process"
    raise _Damaged(reason) from failure


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
  """Keeps Orbax from logging pages about what it also raises."""

  def is_not_orbax(record: logging.LogRecord) -> bool:
    return "orbax" not in record.pathname

  logger = logging.getLogger("absl")
  logger.addFilter(is_not_orbax)
  try:
    yield
  finally:
    logger.removeFilter(is_not_orbax)


def _is_from_storage(error: Exception) -> bool:
  """Whether files are missing or wrong; TensorStore raises ValueError."""
  codes = ("NOT_FOUND", "DATA_LOSS", "FAILED_PRECONDITION", "INVALID_ARGUMENT")
  return isinstance(error, OSError | KeyError) or str(error).startswith(codes)


def _abstract(leaf: Any) -> Any:
  """Returns the leaf's shape and dtype, in memory of its own."""
  leaf = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
  return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)


def _delete(path: pathlib.Path) -> None:
  if path.is_dir() and not path.is_symlink():
    shutil.rmtree(path)
  else:
    path.unlink()


def _is_step(path: pathlib.Path) -> bool:
  # Either file will do: a step that lost one of them is damaged, not absent.
  is_number = path.name.isdecimal() and str(int(path.name)) == path.name
  return is_number and ((path / _MARKER).is_file() or digest.exists(path))


def _from_first(number: int | None) -> int | None:
  """Process 0's number in every process, so that all decide alike."""
  if jax.process_count() == 1:
    return number
  sent = np.int32(-1 if number is None else number)
  received = int(multihost_utils.broadcast_one_to_all(sent))
  return None if received < 0 else received


def _fails_anywhere(is_failure: bool) -> bool:
  """Whether any process failed, in every process."""
  if jax.process_count() == 1:
    return is_failure
  return bool(multihost_utils.process_allgather(np.int32(is_failure)).any())


def _reason(error: BaseException) -> str:
  """Returns why a save failed, without what only Orbax can use."""
  if isinstance(error, OSError) and error.strerror:
    return error.strerror
  if code := _SYSTEM_ERROR.search(str(error)):
    return os.strerror(int(code[1]))
  return _first_line(error)


def _first_line(error: BaseException) -> str:
  text = str(error).strip().split("\n")[0]
  if len(text) > 400:  # TensorStore appends its whole specification
    text = text[:400] + "..."
  return f"{type(error).__name__}: {text}" if text else type(error).__name__
