"""Values of fields: how they are written, read and checked."""

import difflib
import math
import re
import reprlib
import types
import typing
from collections.abc import Sequence
from typing import Any

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80
# For every int: seeds are of 32 bits, sizes and steps of fewer.
_TOO_LARGE = 1 << 32


def shown(value: Any) -> str:
  """Returns a value as an error shows it: one line, and not too long a one."""
  try:
    return _SHORT.repr(value).replace("\n", " ")  # of arrays
  except ValueError:  # an integer of thousands of digits
    return f"<{type(value).__name__} too large to show>"


def is_texts(kind: Any) -> bool:
  """Returns whether the kind of a field is a tuple of texts."""
  return kind == tuple[str, ...]


def nearest(name: str, names: Sequence[str]) -> str:
  """Returns "; did you mean ...?" for the closest of `names`, or "".

  Close is what is spelt alike, and else what has the words of `name` among its
  own: lr is close to peak_lr.
  """
  close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
  if not close:
    holding = [n for n in names if _words(name) <= _words(n)]
    close = difflib.get_close_matches(name, holding, n=1, cutoff=0.0)
  return f"; did you mean {close[0]}?" if close else ""


def _words(name: str) -> set[str]:
  return set(re.split(r"\W|_", name.lower())) - {""}


def parse_value(text: str, kind: Any) -> Any:
  """Reads the command-line form of a field's value.

  Args:
    text: "3e-4", "true", "1,2,3", "text;text", ...
    kind: the field's type: int, float, bool, str, or a tuple of one of them.

  Returns:
    The value.

  Raises:
    ValueError: the text is not of that kind.
  """
  if typing.get_origin(kind) is tuple:
    inner = typing.get_args(kind)[0]
    # Texts may hold commas themselves: "jsonl:chat.jsonl:prompt,answer".
    parts = text.split(";" if inner is str else ",")
    return tuple(parse_value(p.strip(), inner) for p in parts if p.strip())
  if kind is bool:
    if text.lower() not in ("true", "false"):
      raise ValueError(f"{text!r} is neither true nor false")
    return text.lower() == "true"
  return kind(text)


def written(value: Any, kind: Any) -> str:
  """Returns a value as `parse_value` reads it, and "empty" for no text."""
  if isinstance(value, tuple):
    text = (";" if is_texts(kind) else ",").join(map(str, value))
  else:
    text = str(value).lower() if kind is bool else str(value)
  return text or "empty"


def kind_problem(value: Any, kind: Any) -> str:
  """Returns why a value is not one of a field, or "".

  Args:
    value: anything; ints are floats, too.
    kind: the field's type, see `parse_value`.

  Returns:
    What stands after the value in an error, as "must be finite".
  """
  if typing.get_origin(kind) is tuple and isinstance(value, tuple):
    inner = typing.get_args(kind)[0]
    return next(filter(None, (kind_problem(v, inner) for v in value)), "")
  if type(value) is not kind and (kind, type(value)) != (float, int):
    problem = f"is not of the form {kind_name(kind)}"
    if is_texts(kind) and isinstance(value, str):
      problem += f"; in Python, ({shown(value)},) with the comma"
    return problem
  if type(value) is int and not abs(value) < _TOO_LARGE:
    return f"must be below {_TOO_LARGE}"
  if type(value) is float and not math.isfinite(value):
    return "must be finite"
  return ""


def kind_name(kind: Any) -> str:
  """Returns how a value is written, for help and errors: "int,..."."""
  if isinstance(kind, types.GenericAlias):
    inner = typing.get_args(kind)[0]
    return f"{inner.__name__}{';' if inner is str else ','}..."
  return "true|false" if kind is bool else kind.__name__
