"""Loss and accuracy per offset on held-out rows."""

from collections.abc import Callable
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
) -> Callable[[Any], dict[str, np.ndarray]]:
  """Builds the evaluation of parameters on the first rows of a split.

  Args:
    model: the model.
    loss: mode and chunk size.
    rows: held-out rows.
    batch_size: rows per batch, over all devices.
    batches: how many batches at most.

  Returns:
    params -> {"loss", "accuracy", "targets"}, each [M]. Loss is in nats per
    valid target; sums and counts of all batches are divided once.
  """

  @jax.jit
  def sums_of(params: Any, batch: dict[str, jax.Array]) -> OffsetSums:
    targets = batch_targets(batch, model.heads.offsets)
    coefficients_M = offset_coefficients(targets.counts_M, ())
    probes_M = 0.0 * coefficients_M
    _, sums = model_loss(
      model, loss, params, probes_M, batch, targets, coefficients_M
    )
    return sums

  def evaluate(params: Any) -> dict[str, np.ndarray]:
    total = None
    for local in evaluation_batches(
      rows, batch_size, batches, jax.process_index(), jax.process_count()
    ):
      sums = sums_of(params, parallel.place_batch(local, model.mesh))
      # int32 on the device is enough for a batch, not for a data set.
      sums = jax.tree.map(
        lambda x: np.asarray(x, np.float64), jax.device_get(sums)
      )
      total = sums if total is None else total + sums
    assert total is not None, "evaluation_batches yields at least one"
    count_M = np.maximum(total.count_M, 1)
    return {
      "loss": total.nll_M / count_M,
      "accuracy": total.correct_M / count_M,
      "targets": total.count_M,
    }

  return evaluate
