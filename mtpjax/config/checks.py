"""Fields of a configuration, and what is asked of their values."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from mtpjax.config.values import kind_problem, shown
from mtpjax.errors import UserError


def field(
  default: Any, help: str, may_change: bool = False, per_request: bool = False
) -> Any:
  """Makes a field of a section.

  Args:
    default: its default.
    help: one line for the command line.
    may_change: a resumed run may have another value.
    per_request: a request may have its own value.

  Returns:
    The field.
  """
  return dataclasses.field(
    default=default,
    metadata={
      "help": help, "may_change": may_change, "per_request": per_request
    },
  )  # fmt: skip


def checked_value(path: str, value: Any, kind: Any) -> Any:
  """Returns the value of a field, lists as tuples, if it is of its kind.

  Args:
    path: of the field, as "optim.peak_lr".
    value: what it was given.
    kind: its type.

  Returns:
    The value.

  Raises:
    UserError: it is of another kind, not finite, or too large.
  """
  if isinstance(value, list):
    value = tuple(value)
  if problem := kind_problem(value, kind):
    raise UserError(f"{path}: {shown(value)} {problem}")
  return value


def check_kinds(section: str, config: Any) -> None:
  """Checks the kind of every field; see `checked_value`."""
  for each in dataclasses.fields(config):
    path, value = f"{section}.{each.name}", getattr(config, each.name)
    # Frozen for everybody else.
    object.__setattr__(config, each.name, checked_value(path, value, each.type))


def require(claim: bool, name: str, value: Any, way_out: str) -> None:
  """Raises UserError "name: value way_out" unless the claim holds."""
  if not claim:
    raise UserError(f"{name}: {value!r} {way_out}")


def require_one_of(name: str, value: str, allowed: Sequence[str]) -> None:
  """Raises UserError unless the value is one of those allowed."""
  require(value in allowed, name, value, f"is not one of {', '.join(allowed)}")


def require_positive(section: str, config: Any, *names: str) -> None:
  """Raises UserError for a field that is not greater than 0."""
  for name in names:
    value = getattr(config, name)
    require(value > 0, f"{section}.{name}", value, "must be greater than 0")


def require_not_negative(section: str, config: Any, *names: str) -> None:
  """Raises UserError for a field below 0."""
  for name in names:
    value = getattr(config, name)
    require(value >= 0, f"{section}.{name}", value, "must be >= 0")
