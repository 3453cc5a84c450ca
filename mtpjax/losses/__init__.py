"""Targets and their validity, cross-entropy, the multi-offset loss."""

from mtpjax.losses.inputs import HeadInputs, split_unembeddings
from mtpjax.losses.model_loss import batch_targets, model_loss
from mtpjax.losses.multi_offset import multi_offset_loss
from mtpjax.losses.readout import OffsetSums, Readout, Seen
from mtpjax.losses.schedule import Constant, Schedule, offset_coefficients
from mtpjax.losses.targets import (
  TARGETS,
  Lesson,
  Source,
  Target,
  TargetIds,
  Targets,
  check_target,
  shift_targets,
)

__all__ = [
  "TARGETS",
  "Constant",
  "HeadInputs",
  "Lesson",
  "OffsetSums",
  "Readout",
  "Schedule",
  "Seen",
  "Source",
  "Target",
  "TargetIds",
  "Targets",
  "batch_targets",
  "check_target",
  "model_loss",
  "multi_offset_loss",
  "offset_coefficients",
  "shift_targets",
  "split_unembeddings",
]
