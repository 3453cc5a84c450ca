"""Rows on disk: four `.npy` files per split, appended to, then mapped.

Axes: N rows, T tokens of a row.
"""

import contextlib
import pathlib
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from mtpjax.data.corpus import token_dtype
from mtpjax.data.fingerprint import load_fingerprint
from mtpjax.data.tokenizer import Tokenizer
from mtpjax.errors import UserError

SPLITS = ("train", "validation")
# Tokens read at a time where all rows are looked at.
_BLOCK = 2**20


def row_dtypes(vocab_size: int, row_length: int) -> dict[str, np.dtype]:
  """Returns what is stored of a row, as dtypes by name.

  `tokens` are ids, `segments` count the pieces in a row from 1 (0 is padding),
  `positions` restart at 0 in each segment, `loss_mask` says whether the
  token may be a target.
  """
  index = np.dtype(np.uint16 if row_length < 2**16 else np.uint32)
  return {
    "tokens": token_dtype(vocab_size),
    "segments": index,
    "positions": index,
    "loss_mask": np.dtype(np.bool_),
  }


class RowWriter:
  """Appends rows to the files of one split; a context manager."""

  def __init__(
    self, folder: pathlib.Path, dtypes: dict[str, np.dtype], row_length: int
  ):
    folder.mkdir(parents=True)
    self.n_rows = 0
    self._row_length = row_length
    self._dtypes = dtypes
    self._files = {n: open(folder / f"{n}.npy", "wb") for n in dtypes}
    self._write_headers()

  def append(self, rows: dict[str, np.ndarray]) -> None:
    """Appends rows; a dict from each name to an array of [N, T]."""
    for name, file in self._files.items():
      file.write(rows[name].astype(self._dtypes[name], copy=False).tobytes())
    self.n_rows += len(rows["tokens"])

  def _write_headers(self) -> None:
    for name, file in self._files.items():
      file.seek(0)
      _write_header(file, self._dtypes[name], (self.n_rows, self._row_length))

  def __enter__(self) -> "RowWriter":
    return self

  def __exit__(self, *exception) -> None:
    self._write_headers()
    for file in self._files.values():
      file.close()


def _write_header(
  file: BinaryIO, dtype: np.dtype, shape: tuple[int, int]
) -> None:
  # NumPy pads headers so that the first axis may grow to 21 digits in place.
  np.lib.format.write_array_header_1_0(
    file,
    {
      "descr": np.lib.format.dtype_to_descr(dtype),
      "fortran_order": False,
      "shape": shape,
    },
  )


class Rows:
  """Memory-mapped rows of one split.

  `len(rows)` is their number. `rows[i]` is a dict of arrays of [T]: `tokens`,
  `segments` and `positions` in int32 and `loss_mask` in bool; see
  `row_dtypes` for what they mean.
  """

  def __init__(self, path: str | pathlib.Path, split: str):
    fingerprint = load_fingerprint(path)
    identity = fingerprint["identity"]
    self.path = pathlib.Path(path)
    self.split = split
    self.row_length: int = identity["row_length"]
    self._length: int = fingerprint["splits"][split]["rows"]
    self._arrays_NT = {
      name: _open_array(
        self.path / split / f"{name}.npy",
        dtype,
        (self._length, self.row_length),
      )
      for name, dtype in row_dtypes(
        identity["vocab_size"], self.row_length
      ).items()
    }

  def __len__(self) -> int:
    return self._length

  def largest_id(self) -> int:
    """Returns the largest id of all rows, -1 if there is none."""
    largest = (int(tokens_NT.max()) for (tokens_NT,) in self.blocks("tokens"))
    return max(largest, default=-1)

  def blocks(self, *names: str) -> Iterator[tuple[np.ndarray, ...]]:
    """Yields arrays of [N, T] by these names, as stored, some rows at a time.

    They are read from the files, not mapped, and are no memory afterwards.
    """
    n_block = max(_BLOCK // self.row_length, 1)
    with contextlib.ExitStack() as stack:
      files = []
      for name in names:
        file = open(self.path / self.split / f"{name}.npy", "rb")
        files.append(stack.enter_context(file))
        np.lib.format.read_magic(file)
        np.lib.format.read_array_header_1_0(file)
      for start in range(0, self._length, n_block):
        n = min(n_block, self._length - start)
        yield tuple(
          np.fromfile(
            file, self._arrays_NT[name].dtype, n * self.row_length
          ).reshape(n, self.row_length)
          for name, file in zip(names, files, strict=True)
        )

  def __getitem__(self, index: int) -> dict[str, np.ndarray]:
    return {
      name: array_NT[index].astype(
        np.bool_ if array_NT.dtype == np.bool_ else np.int32
      )
      for name, array_NT in self._arrays_NT.items()
    }


def require_within(rows: Rows, tokenizer: Tokenizer, vocab_size: int) -> None:
  """Checks that a model has all ids of some rows.

  A tokenizer may have tokens that were added to it alone, as one for padding;
  that no text has them is for the rows to show.

  Args:
    rows: prepared with the tokenizer.
    tokenizer: any; looked at before the rows are, which takes time.
    vocab_size: the model's ids are below this.

  Raises:
    UserError: an id of the rows is not.
  """
  if tokenizer.vocab_size <= vocab_size:
    return
  largest = rows.largest_id()
  if largest >= vocab_size:
    raise UserError(
      f"model.vocab_size: {vocab_size} is less than the tokenizer's "
      f"{tokenizer.vocab_size}, and the rows of {rows.path} have id {largest}; "
      "prepare texts without it, or leave model.vocab_size 0 for a new model"
    )


def longest_reach(path: str | pathlib.Path, split: str) -> int:
  """Returns the largest offset for which prepared rows hold a target.

  Args:
    path: the data folder.
    split: "train" or "validation".

  Returns:
    Offset m has targets in a split if m is at most that; 0 if none has.

  Raises:
    UserError: see `open_rows`.
  """
  rows = open_rows(path, split)
  longest = 0
  # A target may be predicted from each token before it in its piece.
  for positions_NT, mask_NT in rows.blocks("positions", "loss_mask"):
    longest = max(longest, int((positions_NT * mask_NT).max(initial=0)))
  return longest


def open_rows(path: str | pathlib.Path, split: str) -> Rows:
  """Opens the rows that `prepare` wrote.

  Args:
    path: the data folder.
    split: "train" or "validation".

  Returns:
    The rows; none if the split is empty.

  Raises:
    UserError: no such split, the folder is missing, was not completed, or
      its files are not those its fingerprint counts.
  """
  if split not in SPLITS:
    raise UserError(f"split: {split!r} is not one of {', '.join(SPLITS)}")
  return Rows(path, split)


def _open_array(
  path: pathlib.Path, dtype: np.dtype, shape: tuple[int, int]
) -> np.ndarray:
  way_out = f"delete {path.parent.parent} and run `mtpjax prepare` again"
  if not path.is_file():
    raise UserError(f"{path}: missing from the prepared data; {way_out}")
  try:
    with open(path, "rb") as file:
      np.lib.format.read_magic(file)
      found, _, found_dtype = np.lib.format.read_array_header_1_0(file)
      start = file.tell()
  except ValueError as error:
    raise UserError(f"{path}: damaged header; {way_out}") from error
  if (found, found_dtype) != (shape, dtype):
    raise UserError(
      f"{path}: holds {found_dtype} {found} where the fingerprint says {dtype} "
      f"{shape}; {way_out}"
    )
  wanted = start + shape[0] * shape[1] * dtype.itemsize
  size = path.stat().st_size
  if size != wanted:
    raise UserError(
      f"{path}: damaged, {size} bytes where {wanted} belong; {way_out}"
    )
  if shape[0] == 0:
    return np.zeros(shape, dtype)
  # A plain view: indexing the memmap class itself is several times slower.
  return np.asarray(np.memmap(path, dtype, "r", start, shape))
