"""What others publish: JSON and its fields, read with errors that name them.

Files of other programs are read through this, whatever they describe: a model,
a tokenizer, the metadata of a container.
"""

import codecs
import json
import math
import pathlib
from collections.abc import Collection, Mapping
from typing import Any

from mtpjax.config.values import shown
from mtpjax.errors import UserError

_MOST = 2**31  # of anything that is counted


def read_text(path: pathlib.Path) -> str:
  """Returns the text of a file, line ends as they are; it must be UTF-8."""
  try:
    return path.read_bytes().removeprefix(codecs.BOM_UTF8).decode("utf-8")
  except UnicodeDecodeError as error:
    raise UserError(
      f"{path}: is not UTF-8 at byte {error.start}; copy it again"
    ) from error


def read_object(path: pathlib.Path) -> dict[str, Any]:
  """Returns the JSON object in a file; UserError if there is none."""
  if not path.is_file():
    raise UserError(f"{path}: no such file; copy it from where the weights are")
  return parse_object(read_text(path), str(path))


def parse_object(text: str, source: str) -> dict[str, Any]:
  """Returns the JSON object that a text is.

  Args:
    text: JSON.
    source: the file, for errors.

  Raises:
    UserError: it is no JSON object.
  """
  try:
    values = json.loads(text)
  except json.JSONDecodeError as error:
    raise UserError(f"{source}: not valid JSON ({error}); copy it again") from (
      error
    )
  except RecursionError as error:
    raise UserError(f"{source}: nested too deeply") from error
  except ValueError as error:  # Python's limit of digits
    raise UserError(f"{source}: has a number that is too long") from error
  if not isinstance(values, dict):
    raise UserError(
      f"{source}: is no JSON object of fields but a {type(values).__name__}; "
      "copy it again"
    )
  return values


class Fields:
  """Reads fields of a JSON object; null and a missing field are the same."""

  def __init__(
    self,
    values: Mapping[str, Any],
    source: str,
    way_out: str = "",
    prefix: str = "",
  ):
    """Wraps values.

    Args:
      values: by name.
      source: begins every error.
      way_out: ends it.
      prefix: what the names of these fields begin with.
    """
    self.values = values
    self.source = source
    self.way_out = f"; {way_out}" if way_out else ""
    self.prefix = prefix
    self._seen: set[str] = set()

  def get(self, name: str) -> Any:
    """Returns the value as it is; None where there is none."""
    name = self.prefix + name
    self._seen.add(name)
    return self.values.get(name)

  def unread(self, silent: Collection[str] = ()) -> str:
    """Returns a field that nobody has read; "" where there is none.

    Args:
      silent: fields that say nothing which matters.
    """
    known = self._seen | {self.prefix + name for name in silent}
    left = [n for n in self.values if n.startswith(self.prefix)]
    return min(set(left) - known, default="")

  def integer(
    self, name: str, default: int | None = None, least: int = 1
  ) -> int:
    """Returns a whole number, at least `least`; null gives the default."""
    value = self._of_kind(name, int, "a whole number", default)
    if not least <= value < _MOST:
      raise self.error(name, f"must be at least {least} and below {_MOST:,}")
    return value

  def number(
    self, name: str, default: float | None = None, least: float = 0
  ) -> float:
    """Returns a finite number above 0, and at least `least`."""
    value = self._of_kind(name, (int, float), "a number", default)
    try:
      number = float(value)
    except OverflowError:  # an integer beyond any float
      number = math.inf
    if not (math.isfinite(number) and number > 0 and number >= least):
      least_is = f"at least {least:g}" if least else "greater than 0"
      raise self.error(name, f"must be finite and {least_is}")
    return number

  def text(self, name: str, default: str | None = None) -> str:
    """Returns a text; null gives the default."""
    return self._of_kind(name, str, "a text", default)

  def items(self, name: str) -> list[Any]:
    """Returns a list, whatever is in it."""
    return self._of_kind(name, list, "a list")

  def require(self, name: str, only: Any) -> None:
    """Raises UserError for another value than the only one supported."""
    value = self.get(name)
    if value is not None and value != only:
      raise self.error(name, f"is not supported, only {only!r}")

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

  def ids(self, name: str) -> tuple[int, ...]:
    """Returns ids: one, a list of them, or none where there is null."""
    value = self.get(name)
    found = value if isinstance(value, list) else [value]
    if value is None:
      return ()
    if not all(isinstance(i, int) and not isinstance(i, bool) for i in found):
      raise self.error(
        name, "is neither a whole number nor a list of them; correct it"
      )
    return tuple(found)

  def error(self, name: str, what: str) -> UserError:
    """Returns an error that names a field and its value."""
    value = shown(self.get(name))
    return UserError(
      f"{self.source}: {self.prefix}{name} {value} {what}{self.way_out}"
    )

  def _of_kind(
    self, name: str, kind: Any, called: str, default: Any = None
  ) -> Any:
    value = self.get(name)
    value = default if value is None else value
    if value is None:
      name = self.prefix + name
      there = "is null" if name in self.values else "is not there"
      raise UserError(
        f"{self.source}: has no field {name} (it {there}); it must be {called}"
        f"{self.way_out}"
      )
    if not isinstance(value, kind) or (
      isinstance(value, bool) and kind is not bool
    ):
      raise self.error(name, f"is not {called}")
    return value
