"""Hidden states of a frozen model on disk, so that its trunk runs once.

  STATES/train.bin    tapped states [rows, T, D] of the prepared rows, bare:
                      .npy files know no bfloat16
  STATES/train.json   what they were made from, and how many rows are done

Axes: B rows of a batch, T tokens, D width.
"""

import contextlib
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from mtpjax import parallel
from mtpjax.checkpoint import lock
from mtpjax.config import read_json, write_json
from mtpjax.data import Rows, evaluation_batches
from mtpjax.errors import UserError
from mtpjax.heads import MultiTokenModel
from mtpjax.model import Placement

# Rows between notes of how far it got; those after the last are run again.
_NOTE_EVERY = 64


class RowsWithStates:
  """Prepared rows with their hidden states; otherwise like `Rows`.

  `rows[i]` also has `hidden`, [T, D].
  """

  def __init__(self, rows: Rows, states_NTD: np.ndarray):
    self.path = rows.path
    self.split = rows.split
    self.row_length = rows.row_length
    self._rows = rows
    self._states_NTD = states_NTD

  def __len__(self) -> int:
    return len(self._rows)

  def __getitem__(self, index: int) -> dict[str, np.ndarray]:
    return self._rows[index] | {"hidden": np.array(self._states_NTD[index])}


def cache_states(
  model: MultiTokenModel,
  lm: Any,
  rows: Rows,
  folder: str | pathlib.Path,
  identity: dict[str, Any],
  batch_size: int,
  report: Callable[[int, int], None],
) -> RowsWithStates:
  """Runs the trunk over all rows, or takes what an earlier run has left.

  A run that was stopped goes on where it was.

  Args:
    model: the model; its tap is after the last layer.
    lm: parameters of the frozen model.
    rows: prepared rows.
    folder: where the states go.
    identity: names the rows and the model; JSON values.
    batch_size: rows per pass.
    report: called with the rows done, and of how many.

  Returns:
    The rows with their states.

  Raises:
    UserError: the folder holds states of other rows or another model, or
      there are several processes.
  """
  if jax.process_count() > 1:
    raise UserError(
      "base.states: one process writes the states; leave it empty in a run of "
      f"{jax.process_count()} processes"
    )
  folder = pathlib.Path(folder)
  array_file = folder / f"{rows.split}.bin"
  note_file = folder / f"{rows.split}.json"
  shape = (len(rows), rows.row_length, model.config.d_model)
  identity = identity | {
    "split": rows.split, "tap": model.heads.tap, "shape": list(shape),
    "dtype": model.config.dtype,
  }  # fmt: skip
  dtype = jax.numpy.dtype(model.config.dtype)
  with _written_by_one(folder):
    return _cache(
      model, lm, rows, array_file, note_file, shape, dtype, identity,
      batch_size, report,
    )  # fmt: skip


@contextlib.contextmanager
def _written_by_one(folder: pathlib.Path) -> Iterator[None]:
  try:
    folder.mkdir(parents=True, exist_ok=True)
  except OSError as error:
    raise UserError(
      f"base.states: {folder} cannot be made ({error.strerror}); give another "
      "folder"
    ) from error
  # A cache, which is made anew at need: not worth a line where no locks are.
  with lock(folder, "base.states", "give another folder", lambda text: None):
    yield


def _cache(
  model, lm, rows, array_file, note_file, shape, dtype, identity, batch_size,
  report,
) -> RowsWithStates:  # fmt: skip
  folder = array_file.parent
  done = _rows_done(note_file, identity)
  is_there = done > 0 and array_file.is_file()
  if is_there and array_file.stat().st_size != np.prod(shape) * dtype.itemsize:
    raise UserError(
      f"base.states: {array_file} is damaged; delete {folder} to make it anew"
    )
  if not len(rows):
    return RowsWithStates(rows, np.zeros(shape, dtype))
  if not is_there:
    done = 0
  states_NTD = np.memmap(
    array_file, dtype, "r+" if is_there else "w+", shape=shape
  )

  def note(done: int) -> None:
    states_NTD.flush()
    write_json(note_file, {"rows": done} | identity)

  if done < len(rows):
    _fill(model, lm, rows, states_NTD, done, batch_size, report, note)
  return RowsWithStates(rows, np.memmap(array_file, dtype, "r", shape=shape))


def _rows_done(note_file: pathlib.Path, identity: dict[str, Any]) -> int:
  if not note_file.is_file():
    return 0
  try:
    note = read_json(note_file)
    done = int(note.pop("rows"))
  except (
    OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError,
  ) as error:  # fmt: skip
    raise UserError(
      f"base.states: {note_file} is damaged; delete {note_file.parent} to make "
      "it anew"
    ) from error
  for name, value in identity.items():
    if note.get(name) != value:
      raise UserError(
        f"base.states: {note_file.parent} holds the states of another run "
        f"({name} is {note.get(name)!r} there, {value!r} here); give another "
        "folder or delete it"
      )
  return done


def _fill(model, lm, rows, states_NTD, done, batch_size, report, note) -> None:
  @jax.jit
  def tap_of(lm: Any, batch: dict[str, jax.Array]) -> jax.Array:
    return model.apply_trunk(
      lm,
      batch["tokens"],
      Placement.packed(batch["positions"], batch["segments"]),
    ).tap_BTD

  done -= done % batch_size
  left: Any = _From(rows, done)
  batches = evaluation_batches(left, batch_size, -(-len(rows) // batch_size))
  noted = done
  for batch in batches:
    tap_BTD = tap_of(lm, parallel.place_batch(batch, model.mesh))
    n = min(batch_size, len(rows) - done)
    states_NTD[done : done + n] = np.asarray(tap_BTD)[:n]
    done += n
    report(done, len(rows))
    if done - noted >= _NOTE_EVERY or done == len(rows):
      note(done)
      noted = done


class _From:
  """The rows from a first one on."""

  def __init__(self, rows: Any, first: int):
    self.path, self.split = rows.path, rows.split
    self._rows, self._first = rows, first

  def __len__(self) -> int:
    return len(self._rows) - self._first

  def __getitem__(self, index: int) -> dict[str, np.ndarray]:
    return self._rows[index + self._first]
