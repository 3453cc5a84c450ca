"""How many drafts are worth a pass.

`choice` predicts trees from what calibration recorded, `levels` are its
records, `calibration` is what is saved beside a checkpoint, and `governor`
switches between levels while texts are decoded.
"""

from mtpjax.decode.budget.calibration import Calibration, Entry, device_name
from mtpjax.decode.budget.choice import (
  MISS,
  choose,
  curve,
  grow,
  ladder,
  reach,
  tokens_per_pass,
)
from mtpjax.decode.budget.governor import Governor
from mtpjax.decode.budget.levels import Choice, Level, PassCosts

__all__ = [
  "MISS",
  "Calibration",
  "Choice",
  "Entry",
  "Governor",
  "Level",
  "PassCosts",
  "choose",
  "curve",
  "device_name",
  "grow",
  "ladder",
  "reach",
  "tokens_per_pass",
]
