"""How many drafts are worth a pass.

`choice` predicts trees from what calibration recorded, `levels` are its
records, `calibration` is what is saved beside a checkpoint, and `governor`
switches between levels while texts are decoded.
"""

from mtpjax.budget.auto import automatic
from mtpjax.budget.calibration import Calibration, Entry, device_name
from mtpjax.budget.choice import (
  MISS,
  choose,
  curve,
  grow,
  levels_of,
  predicted,
  reach,
)
from mtpjax.budget.governor import Governor
from mtpjax.budget.levels import Choice, Level, PassCosts
from mtpjax.budget.plan import programs

__all__ = [
  "MISS",
  "Calibration",
  "Choice",
  "Entry",
  "Governor",
  "Level",
  "PassCosts",
  "automatic",
  "choose",
  "curve",
  "device_name",
  "grow",
  "levels_of",
  "programs",
  "reach",
  "predicted",
]
