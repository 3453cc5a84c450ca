"""Loss and accuracy per offset on held-out rows."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from mtpjax import config as config_lib
from mtpjax import parallel
from mtpjax.data import Rows, evaluation_batches
from mtpjax.heads import MultiTokenModel
from mtpjax.losses import (
  OffsetSums,
  batch_targets,
  model_loss,
  offset_coefficients,
)


def make_evaluator(
  model: MultiTokenModel,
  loss: config_lib.Loss,
  rows: Rows,
  batch_size: int,
  batches: int,
  say: Callable[[str], None] | None = None,
  on_batch: Callable[[int], Any] | None = None,
) -> Callable[[Any], dict[str, np.ndarray]]:
  """Builds the evaluation of parameters on the first rows of a split.

  Args:
    model: the model.
    loss: mode and chunk size.
    rows: held-out rows.
    batch_size: rows per batch, over all devices.
    batches: how many batches at most.
    say: receives a warning, once, for offsets without a valid target.
    on_batch: called with the number of batches done so far.

  Returns:
    params -> {"loss", "accuracy", "targets"}, each [M]. Loss is in nats per
    valid target; sums and counts of all batches are divided once. Where an
    offset has no valid target, loss and accuracy are NaN: nothing was measured.
  """
  is_told = False

  def evaluate(params: Any) -> dict[str, np.ndarray]:
    nonlocal is_told
    total = None
    for n, local in enumerate(
      evaluation_batches(
        rows, batch_size, batches, jax.process_index(), jax.process_count()
      )
    ):
      batch = parallel.place_batch(local, model.mesh)
      sums = _sums_of(model, loss, params, batch)
      # int32 on the device is enough for a batch, not for a data set.
      sums = jax.tree.map(
        lambda x: np.asarray(x, np.float64), jax.device_get(sums)
      )
      total = sums if total is None else total + sums
      if on_batch is not None:
        on_batch(n + 1)
    assert total is not None, "evaluation_batches yields at least one"
    if say is not None and not is_told:
      is_told = True  # the rows are the same the next time
      line = _without_targets(model.heads.offsets, total.count_M, rows)
      if line:
        say(line)
    # 0 / 0 is not 0: a loss of 0.000 would be the best there is.
    count_M = np.where(total.count_M > 0, total.count_M, np.nan)
    means = {
      name: sum_M / count_M for name, sum_M in total.per_target().items()
    }
    return means | {"targets": total.count_M}

  return evaluate


@functools.partial(jax.jit, static_argnames=("model", "loss"))
def _sums_of(
  model: MultiTokenModel,
  loss: config_lib.Loss,
  params: Any,
  batch: dict[str, jax.Array],
) -> OffsetSums:
  counts_M = batch_targets(batch, model.heads.offsets).counts_M
  coefficients_M = offset_coefficients(counts_M, ())
  probes_M = 0.0 * coefficients_M
  return model_loss(model, loss, params, probes_M, batch, coefficients_M)[1]


def _without_targets(
  offsets: Sequence[int], count_M: np.ndarray, rows: Rows
) -> str:
  """Returns a warning if offsets have nothing to be measured on."""
  empty = [
    str(offset)
    for offset, count in zip(offsets, count_M, strict=True)
    if not count
  ]
  if not empty:
    return ""
  return (
    f"WARNING: no valid target at offset {', '.join(empty)} in the "
    f"{rows.split} rows evaluated: there is no loss and no accuracy; documents "
    "are too short for it, or the loss mask leaves nothing of them"
  )
