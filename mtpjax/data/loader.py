"""Batches of prepared rows, as a pure function of the step.

Axes: B rows of this process's part of a batch, T tokens.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from mtpjax.data.rows import Rows
from mtpjax.errors import UserError

Batch = dict[str, np.ndarray]

# One batch is made while another waits: enough to hide reading rows.
_THREADS = 2
_BATCHES_AHEAD = 4


class Loader:
  """Batches for training: shuffled anew each epoch, for ever.

  The global batch of a step depends only on the rows, the seed, the global
  batch size and the step. Process i of n holds its i-th contiguous block, so
  any number of processes sees the same rows in the same order. A batch may
  run over the end of an epoch into the next; no row is dropped.

  A batch is a dict of arrays of [B, T]: `tokens`, `segments`, `positions` in
  int32 and `loss_mask` in bool.
  """

  def __init__(
    self,
    rows: Rows,
    global_batch: int,
    seed: int,
    process_index: int = 0,
    process_count: int = 1,
  ):
    """Makes a loader.

    Args:
      rows: from `open_rows`.
      global_batch: rows per step, over all processes.
      seed: of the order of the rows, at least 0.
      process_index: which block of each batch to take.
      process_count: blocks per batch.

    Raises:
      UserError: there are no rows, the seed is negative, or the batch does
        not divide among the processes.
    """
    import grain

    local_batch = _local_batch(rows, global_batch, process_count)
    if seed < 0:
      raise UserError(f"train.seed: {seed} must be at least 0")
    # Repeating a shuffled data set shuffles each epoch with its own seed.
    blocks = (
      grain.MapDataset.source(rows)
      .seed(seed)
      .shuffle()
      .repeat()
      # The rows never end, so nothing is dropped; but the number of batches is
      # rounded in integers, where batches of one overflow otherwise.
      .batch(local_batch, drop_remainder=True)
    )
    self._batches = blocks[process_index::process_count]
    self._options = grain.ReadOptions(
      num_threads=_THREADS, prefetch_buffer_size=_BATCHES_AHEAD
    )

  def batch(self, step: int) -> Batch:
    """Returns this process's part of the batch of a step (from 0)."""
    return self._batches[step]

  def iterate(self, start_step: int = 0) -> "BatchIterator":
    """Returns an iterator over `batch(start_step)`, `batch(start_step + 1)`...

    Batches are made ahead, in threads. Close the iterator, or use it in a
    `with`, to end them.
    """
    ahead = self._batches[start_step:].to_iter_dataset(self._options)
    return BatchIterator(iter(ahead))


class BatchIterator:
  """An endless iterator over batches; a context manager that closes it."""

  def __init__(self, batches: Any):
    self._batches = batches

  def __iter__(self) -> "BatchIterator":
    return self

  def __next__(self) -> Batch:
    return next(self._batches)

  def close(self) -> None:
    """Ends the threads; to be called once the last batch is taken."""
    self._batches.close()

  def __enter__(self) -> "BatchIterator":
    return self

  def __exit__(self, *exception) -> None:
    self.close()


def evaluation_batches(
  rows: Rows,
  global_batch: int,
  n: int,
  process_index: int = 0,
  process_count: int = 1,
) -> Iterator[Batch]:
  """Returns the first batches of the rows, in file order, each row once.

  Args:
    rows: from `open_rows`.
    global_batch: rows per batch, over all processes.
    n: batches at most; fewer if the rows run out.
    process_index: which block of each batch to take.
    process_count: blocks per batch.

  Returns:
    An iterator over min(n, batches there are) batches, as many on every
    process. Where rows run out, the last batch is filled up with rows of
    padding (segment 0, loss mask False), which nothing counts.

  Raises:
    UserError: there are no rows, `n` is not positive, or the batch does not
      divide among the processes.
  """
  local_batch = _local_batch(rows, global_batch, process_count)
  if n < 1:
    raise UserError(f"train.eval_batches: {n} must be greater than 0")
  n_batches = min(n, -(-len(rows) // global_batch))
  return (
    _block(rows, b * global_batch + process_index * local_batch, local_batch)
    for b in range(n_batches)
  )


def _block(rows: Rows, start: int, size: int) -> Batch:
  """Returns rows `start` to `start + size`, padding where there are none."""
  padding = {name: np.zeros_like(row_T) for name, row_T in rows[0].items()}
  block: list[dict[str, Any]] = [
    rows[i] if i < len(rows) else padding for i in range(start, start + size)
  ]
  return {name: np.stack([row[name] for row in block]) for name in padding}


def _local_batch(rows: Rows, global_batch: int, process_count: int) -> int:
  if len(rows) == 0:
    raise UserError(
      f"{rows.path}: its {rows.split} split has no rows; prepare more text or "
      "change --data.validation-fraction"
    )
  if global_batch < 1 or global_batch % process_count:
    raise UserError(
      f"train.batch_size: {global_batch} does not divide among "
      f"{process_count} processes; take a multiple of {process_count}"
    )
  return global_batch // process_count
