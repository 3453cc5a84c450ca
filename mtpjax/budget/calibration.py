"""What `mtpjax calibrate` found out, and what `--mode auto` reads."""

import dataclasses
import math
import pathlib
from collections.abc import Mapping
from typing import Any

import jax

from mtpjax.budget.levels import Choice, Level, PassCosts
from mtpjax.config import read_json, write_json
from mtpjax.decode.verifiers import Verifier, name_of
from mtpjax.errors import UserError, quoted


@dataclasses.dataclass(frozen=True)
class Entry:
  """One batch size and temperature.

  Attributes:
    batch: rows decoded together.
    temperature: 0 is greedy.
    costs: seconds of a pass by nodes, drafting included.
    draft_secs: of which drafting with all heads.
    choice: the tree to use, and why.
    levels: what to switch between while decoding, plain decoding first.
  """

  batch: int
  temperature: float
  costs: PassCosts
  draft_secs: float
  choice: Choice
  levels: tuple[Level, ...]

  def __post_init__(self):
    if self.batch < 1 or not 0 <= self.temperature < math.inf:
      raise UserError(
        f"calibration: batch {self.batch} and temperature {self.temperature} "
        "must be at least 1 and 0; calibrate again"
      )
    if not self.levels or self.levels[0].tree.size != 1:
      raise UserError(
        f"calibration: the first of {len(self.levels)} levels must be there "
        "and be plain decoding, the root alone; calibrate again"
      )

  def apart_from(
    self, batch: int, temperature: float, verifier: Verifier
  ) -> str:
    """Returns what makes the entry say little of some way of decoding.

    Args:
      batch: rows decoded together.
      temperature: 0 is greedy.
      verifier: of drafts; `coupled` is what was measured.

    Returns:
      As in "batch 1, not 8", "" if it applies.
    """
    parts = []
    if not batch <= 2 * self.batch <= 4 * batch:
      parts.append(f"batch {self.batch}, not {batch}")
    if (self.temperature > 0) != (temperature > 0):
      parts.append(f"temperature {self.temperature:g}, not {temperature:g}")
    if not verifier.shares_noise:
      parts.append(f"verifier coupled, not {name_of(verifier)}")
    return "; ".join(parts)

  def to_dict(self) -> dict[str, Any]:
    """Returns the entry, ready for JSON."""
    return {
      "batch": self.batch,
      "temperature": self.temperature,
      "costs": self.costs.to_dict(),
      "draft_secs": self.draft_secs,
      "choice": self.choice.to_dict(),
      "levels": [level.to_dict() for level in self.levels],
    }

  @classmethod
  def from_dict(cls, values: Mapping[str, Any]) -> "Entry":
    """Returns the entry of `to_dict`."""
    return cls(
      int(values["batch"]),
      float(values["temperature"]),
      PassCosts.from_dict(values["costs"]),
      float(values["draft_secs"]),
      Choice.from_dict(values["choice"]),
      tuple(map(Level.from_dict, values["levels"])),
    )


@dataclasses.dataclass(frozen=True)
class Calibration:
  """All entries of a checkpoint on a device.

  Attributes:
    step: of the checkpoint.
    device: platform and kind of the device that was measured.
    entries: one per batch size and temperature.
  """

  step: int
  device: str
  entries: tuple[Entry, ...]

  def __post_init__(self):
    if not self.entries:
      raise UserError("calibration: has no entries; calibrate again")

  def save(self, path: pathlib.Path, report: Mapping[str, Any]) -> None:
    """Writes the calibration, and beside it what a reader may want to see."""
    write_json(
      path,
      {
        "step": self.step,
        "device": self.device,
        "entries": [entry.to_dict() for entry in self.entries],
        "report": dict(report),
      },
    )

  @classmethod
  def load(cls, path: pathlib.Path) -> "Calibration":
    """Reads what `save` wrote.

    Args:
      path: a `calibration.json`.

    Returns:
      The calibration.

    Raises:
      UserError: there is none, or it is damaged.
    """
    again = f"`mtpjax calibrate {quoted(path.parent)}` makes it"
    if not path.is_file():
      raise UserError(f"mode: auto needs {path}, which is not there; {again}")
    try:
      values = read_json(path)
      return cls(
        int(values["step"]),
        str(values["device"]),
        tuple(map(Entry.from_dict, values["entries"])),
      )
    except UserError as error:
      raise UserError(f"{path}: is damaged ({error}); {again}") from error
    except (ValueError, KeyError, TypeError, OverflowError) as error:
      raise UserError(
        f"{path}: is damaged ({type(error).__name__}: {error}); {again}"
      ) from error

  @property
  def is_of_this_device(self) -> bool:
    """Whether costs were measured on this kind of device."""
    return self.device == device_name()

  @classmethod
  def of_this_device(cls, path: pathlib.Path) -> "Calibration":
    """Reads a calibration whose costs were measured on this kind of device.

    Raises:
      UserError: see `load`; or it is of another kind of device.
    """
    found = cls.load(path)
    if not found.is_of_this_device:
      raise UserError(
        f"mode: auto: {path} was measured on {found.device}, this is "
        f"{device_name()}; run `mtpjax calibrate {quoted(path.parent)}` here"
      )
    return found

  def level(self, batch: int, temperature: float) -> Level:
    """Returns what was chosen for these, to decode with throughout."""
    return self.nearest(batch, temperature).choice.level

  def nearest(self, batch: int, temperature: float) -> Entry:
    """Returns the entry of the nearest temperature, then batch size."""

    def distance(entry: Entry) -> tuple[float, float]:
      # No temperature is near to 0, which is another way of decoding.
      apart = (entry.temperature > 0) != (temperature > 0)
      return (
        10 * apart + abs(entry.temperature - temperature),
        abs(math.log(entry.batch / batch)),
      )

    return min(self.entries, key=distance)


def device_name() -> str:
  """Returns platform and kind of the device."""
  device = jax.devices()[0]
  return f"{device.platform} {device.device_kind}"
