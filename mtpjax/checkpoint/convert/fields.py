"""Fields of a published configuration, read with errors that name them."""

import math
from collections.abc import Mapping
from typing import Any

from mtpjax import config as config_lib
from mtpjax.errors import UserError

_MOST = 2**31  # of anything that is counted


class Fields:
  """Reads fields of a JSON object; null and a missing field are the same."""

  def __init__(self, values: Mapping[str, Any], source: str):
    """Wraps values; `source` begins every error."""
    self.values = values
    self.source = source

  def get(self, name: str) -> Any:
    """Returns the value as it is; None where there is none."""
    return self.values.get(name)

  def integer(
    self, name: str, default: int | None = None, least: int = 1
  ) -> int:
    """Returns a whole number, at least `least`; null gives the default."""
    value = self._of_kind(name, int, "a whole number", default)
    if not least <= value < _MOST:
      raise self.error(name, f"must be at least {least} and below {_MOST:,}")
    return value

  def number(self, name: str, default: float | None = None) -> float:
    """Returns a finite number above 0; null gives the default."""
    value = self._of_kind(name, (int, float), "a number", default)
    try:
      number = float(value)
    except OverflowError:  # an integer beyond any float
      number = math.inf
    if not (math.isfinite(number) and number > 0):
      raise self.error(name, "must be finite and greater than 0")
    return number

  def text(self, name: str) -> str:
    """Returns a text."""
    return self._of_kind(name, str, "a text")

  def claim(self, name: str, default: bool | None = None) -> bool:
    """Returns true or false; null gives the default."""
    return self._of_kind(name, bool, "true or false", default)

  def texts(self, name: str) -> list[str] | None:
    """Returns a list of texts; None where there is none."""
    value = self.get(name)
    if value is None:
      return None
    if not isinstance(value, list) or not all(
      isinstance(item, str) for item in value
    ):
      raise self.error(name, "is not a list of texts")
    return value

  def error(self, name: str, what: str) -> UserError:
    """Returns an error that names a field and its value."""
    shown = config_lib.shown(self.get(name))
    return UserError(f"{self.source}: {name} {shown} {what}")

  def _of_kind(
    self, name: str, kind: Any, called: str, default: Any = None
  ) -> Any:
    value = self.get(name)
    value = default if value is None else value
    if value is None:
      there = "is null" if name in self.values else "is not there"
      raise UserError(
        f"{self.source}: has no field {name} (it {there}); it must be {called}"
      )
    if not isinstance(value, kind) or (
      isinstance(value, bool) and kind is not bool
    ):
      raise self.error(name, f"is not {called}")
    return value
