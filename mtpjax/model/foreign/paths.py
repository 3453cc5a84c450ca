"""Parameters of somebody else's module, by their paths."""

from collections.abc import Mapping
from typing import Any

from mtpjax.errors import UserError


def split(path: str) -> tuple[str, ...]:
  """Returns the names of a path such as "head/kernel"."""
  return tuple(path.split("/"))


def place_of_unembedding(unembedding: str, embedding: str) -> tuple[Any, bool]:
  """Returns the path of the unembedding, and whether it is the embedding."""
  if bool(unembedding) == bool(embedding):
    raise UserError(
      f"unembedding {unembedding!r}, embedding {embedding!r}: give the path of "
      "one of them"
    )
  return split(unembedding or embedding), bool(embedding)


def take(params: Any, path: tuple[str, ...], what: str) -> Any:
  """Returns what is at the path."""
  found = params
  for name in path:
    if not isinstance(found, Mapping) or name not in found:
      there = ", ".join(sorted(found)) if isinstance(found, Mapping) else "none"
      raise UserError(
        f"{what} {'/'.join(path)}: the module has no parameters {name!r} "
        f"there, but {there}"
      )
    found = found[name]
  return found


def without(params: Any, path: tuple[str, ...]) -> dict[str, Any]:
  """Returns nested dicts without what is at the path."""
  first, *others = path
  rest = {name: value for name, value in params.items() if name != first}
  if others:
    rest[first] = without(params[first], tuple(others))
  return rest


def with_value(
  params: Any, path: tuple[str, ...], value: Any
) -> dict[str, Any]:
  """Returns nested dicts with a value at the path."""
  first, *others = path
  if others:
    value = with_value(params[first], tuple(others), value)
  return {**params, first: value}
