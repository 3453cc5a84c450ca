"""What is asked of a value: facts, and alternatives of them that all hold."""

import dataclasses
import decimal
import math
from collections.abc import Sequence
from typing import Any

from mtpjax.decode.grammar.numbers import Bounds

# JSON's number, in two.
ATOMS = frozenset(
  ("null", "boolean", "integer", "fraction", "string", "array", "object")
)
ANNOTATIONS = frozenset((
  "$schema", "$id", "$comment", "$defs", "definitions", "title", "description",
  "default", "examples", "deprecated", "readOnly", "writeOnly",
))  # fmt: skip
# Facts, and the types of values that they are about.
OF_TYPE = {
  **dict.fromkeys(
    ("minLength", "maxLength", "pattern", "format"), ("string",)
  ),
  **dict.fromkeys(
    ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
     "multipleOf"), ("integer", "fraction"),
  ),
  **dict.fromkeys(
    ("items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains",
     "minContains", "maxContains"), ("array",),
  ),
  **dict.fromkeys(
    ("properties", "patternProperties", "additionalProperties", "required",
     "minProperties", "maxProperties", "propertyNames"), ("object",),
  ),
}  # fmt: skip
# Facts of our own making: no schema has such keywords.
NEVER = "\0never"  # values
NO_PATTERN = "\0no pattern"
ABSENT = "\0absent"  # names of properties
PROPERTY = "\0property"  # schemas of properties, as in "properties"
OURS = frozenset((NEVER, NO_PATTERN, ABSENT, PROPERTY))


@dataclasses.dataclass(frozen=True)
class Item:
  """One schema that a value must fit, or must not.

  Attributes:
    schema: the schema.
    trail: references that led here, sorted.
    fits: whether the value must fit it.
  """

  schema: Any
  trail: tuple[str, ...] = ()
  fits: bool = True

  @property
  def key(self) -> tuple[int, tuple[str, ...], bool]:
    """Equal for the same schema in the same place."""
    return id(self.schema), self.trail, self.fits


@dataclasses.dataclass(frozen=True)
class Fact:
  """One keyword.

  Attributes:
    keyword: its name.
    value: as the schema has it.
    owner: the schema it stands in, with its trail.
  """

  keyword: str
  value: Any
  owner: Item


@dataclasses.dataclass(frozen=True)
class Alternative:
  """Facts that all hold.

  Attributes:
    types: of ATOMS.
    facts: what the value keeps to.
    values: the only values that may be; None leaves them open.
    trail: references that led to it.
  """

  types: frozenset[str]
  facts: tuple[Fact, ...]
  values: tuple[Any, ...] | None
  trail: tuple[str, ...] = ()

  def of(self, *keywords: str) -> list[Fact]:
    """Returns all facts with these keywords."""
    return [fact for fact in self.facts if fact.keyword in keywords]

  def all(self, *keywords: str) -> list[Any]:
    """Returns the values of all facts with these keywords."""
    return [fact.value for fact in self.of(*keywords)]

  @property
  def owner(self) -> Item | None:
    """Where the first of its facts stands."""
    return self.facts[0].owner if self.facts else None

  @property
  def never(self) -> list[Any]:
    """Values that may not be."""
    return [value for values in self.all(NEVER) for value in values]

  def least(self, keyword: str) -> int:
    """Returns the largest of these bounds, 0 without any."""
    return int(max(self.all(keyword), default=0))

  def most(self, keyword: str) -> float:
    """Returns the smallest of these bounds; it may be infinite."""
    return min(self.all(keyword), default=math.inf)

  def bounds(self) -> Bounds:
    """Returns the bounds of a number, without what it is a multiple of."""
    lows = [(_decimal(v), False) for v in self.all("minimum")]
    lows += [(_decimal(v), True) for v in self.all("exclusiveMinimum")]
    highs = [(_decimal(v), True) for v in self.all("maximum")]
    highs += [(_decimal(v), False) for v in self.all("exclusiveMaximum")]
    low, is_low_open = max(lows, default=(None, False))
    high, is_closed = min(
      highs, key=lambda h: (h[0], h[1]), default=(None, True)
    )
    return Bounds(low, high, is_low_open, not is_closed)


def _decimal(value: float) -> decimal.Decimal:
  return decimal.Decimal(repr(value))


def atoms_of(types: Any) -> frozenset[str]:
  """Returns which of ATOMS the names of types stand for."""
  names = {types} if isinstance(types, str) else set(types)
  if "number" in names:
    names |= {"integer", "fraction"}
  return frozenset(names) & ATOMS


def implied(types: frozenset[str], facts: Sequence[Fact]) -> frozenset[str]:
  """Returns the types that the facts are about, if no type is named.

  Strictly {"minLength": 2} takes any number, too; nobody means that.
  """
  if types != ATOMS:
    return types
  named = {t for fact in facts for t in OF_TYPE.get(fact.keyword, ())}
  return frozenset(named) or types


def type_of(value: Any) -> str:
  """Returns which of ATOMS a value is."""
  if value is None:
    return "null"
  if isinstance(value, bool):
    return "boolean"
  if isinstance(value, int | float):
    return "integer" if value == int(value) else "fraction"
  if isinstance(value, str):
    return "string"
  return "array" if isinstance(value, list) else "object"


def same(left: Any, right: Any) -> bool:
  """Returns whether two values are equal in JSON, where 1 is not true."""
  if isinstance(left, bool) or isinstance(right, bool):
    return left is right
  if isinstance(left, list) and isinstance(right, list):
    return len(left) == len(right) and all(map(same, left, right))
  if isinstance(left, dict) and isinstance(right, dict):
    return left.keys() == right.keys() and all(
      same(own, right[key]) for key, own in left.items()
    )
  return bool(left == right)
