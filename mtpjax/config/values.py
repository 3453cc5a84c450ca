"""Values of fields: how they are written, read and checked."""

import difflib
import reprlib
import types
import typing
from collections.abc import Sequence
from typing import Any

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80


def shown(value: Any) -> str:
  """Returns a value as an error shows it: one line, and not too long a one."""
  try:
    return _SHORT.repr(value).replace("\n", " ")  # of arrays
  except ValueError:  # an integer of thousands of digits
    return f"<{type(value).__name__} out of all measure>"


def is_texts(kind: Any) -> bool:
  """Returns whether the kind of a field is a tuple of texts."""
  return kind == tuple[str, ...]


def nearest(name: str, names: Sequence[str]) -> str:
  """Returns " (did you mean ...?)" for the closest of `names`, or ""."""
  close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
  return f"; did you mean {close[0]}?" if close else ""


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


def check_kind(value: Any, kind: Any) -> None:
  """Raises ValueError unless the value is of the kind; ints are floats."""
  if typing.get_origin(kind) is tuple:
    if not isinstance(value, tuple):
      raise ValueError
    for item in value:
      check_kind(item, typing.get_args(kind)[0])
  elif type(value) is not kind and (kind, type(value)) != (float, int):
    raise ValueError


def kind_name(kind: Any) -> str:
  """Returns how a value is written, for help and errors: "int,..."."""
  if isinstance(kind, types.GenericAlias):
    inner = typing.get_args(kind)[0]
    return f"{inner.__name__}{';' if inner is str else ','}..."
  return "true|false" if kind is bool else kind.__name__
