"""Mode `auto`: what calibration found out decides how texts are decoded."""

import collections
import pathlib
from collections.abc import Callable, Sequence

from mtpjax import config as config_lib
from mtpjax.budget.calibration import Calibration
from mtpjax.budget.governor import Governor
from mtpjax.budget.plan import programs
from mtpjax.decode import Request, Spec, Stages, verifiers
from mtpjax.errors import quoted
from mtpjax.heads import MultiTokenModel


def automatic(
  path: pathlib.Path,
  step: int,
  model: MultiTokenModel,
  settings: config_lib.Decode,
  requests: Sequence[Request],
  batch: int,
  warn: Callable[[str], None],
) -> tuple[list[Spec], Governor]:
  """Returns the programs of mode `auto`, and what chooses between them.

  Args:
    path: of the calibration.
    step: of the checkpoint.
    model: the model.
    settings: verifier and what belongs to it.
    requests: at least one.
    batch: rows decoded together.
    warn: gets a line where the calibration says little of these requests.

  Raises:
    UserError: no calibration, a damaged one, or one of another device.
  """
  calibration = Calibration.of_this_device(path)
  again = f"`mtpjax calibrate {quoted(path.parent)}"
  if calibration.step != step:
    warn(
      f"{path} is of step {calibration.step}, this is step {step}; {again}` "
      "measures anew"
    )
  temperatures = collections.Counter(r.temperature for r in requests)
  [(usual, _)] = temperatures.most_common(1)
  entry = calibration.nearest(batch, usual)
  stages = Stages.of(requests)
  # Greedy rows are judged alike by all verifiers.
  verifier: verifiers.Verifier = verifiers.Coupled()
  if stages.is_sampled:
    verifier = verifiers.of(settings)
  apart = entry.apart_from(batch, usual, verifier)
  if apart:
    warn(
      f"mode auto: {path} was measured with {apart}, and its choice may be "
      f"slow here; {again} --batches {batch} --temperatures {usual:g}` "
      "measures anew, with verifier coupled"
    )
  levels = entry.levels
  return programs(model, settings, stages, levels), Governor(levels)
