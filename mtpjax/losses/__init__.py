"""Targets and their validity, cross-entropy, the multi-offset loss."""

from mtpjax.losses.inputs import (
  HeadInputs,
  OffsetSums,
  split_unembeddings,
)
from mtpjax.losses.model_loss import batch_targets, model_loss
from mtpjax.losses.multi_offset import (
  multi_offset_loss,
  offset_coefficients,
)
from mtpjax.losses.targets import Targets, shift_targets

__all__ = [
  "HeadInputs",
  "OffsetSums",
  "Targets",
  "batch_targets",
  "model_loss",
  "multi_offset_loss",
  "offset_coefficients",
  "shift_targets",
  "split_unembeddings",
]
