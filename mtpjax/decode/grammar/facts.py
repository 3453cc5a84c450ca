"""What JSON schemas ask of a value, taken apart into simple alternatives.

A value must fit all of some schemas. `anyOf`, `oneOf`, `not`, `if` and the
rest that joins schemas are resolved here, and what is left are alternatives:
types, and facts (keyword, value) that all hold. An alternative may leave out
texts that would fit, but lets none through that does not.
"""

import dataclasses
import decimal
import difflib
import json
import math
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mtpjax.decode.grammar.grammar import shown
from mtpjax.decode.grammar.numbers import Bounds
from mtpjax.errors import UserError

# JSON's number, in two.
ATOMS = frozenset(
  ("null", "boolean", "integer", "fraction", "string", "array", "object")
)
ANNOTATIONS = frozenset((
  "$schema", "$id", "$comment", "$defs", "definitions", "title", "description",
  "default", "examples", "deprecated", "readOnly", "writeOnly",
))  # fmt: skip
# Facts, and the types of values that they are about.
_OF_TYPE = {
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
_JOINING = frozenset((
  "type", "enum", "const", "$ref", "allOf", "anyOf", "oneOf", "not", "if",
  "then", "else", "dependentRequired", "dependentSchemas",
))  # fmt: skip
# Facts of our own making: no schema has such keywords.
NEVER = "\0never"  # values
NO_PATTERN = "\0no pattern"
ABSENT = "\0absent"  # names of properties
PROPERTY = "\0property"  # schemas of properties, as in "properties"
_OURS = frozenset((NEVER, NO_PATTERN, ABSENT, PROPERTY))
_NEGATED = {
  "minLength": ("string", "maxLength", -1),
  "maxLength": ("string", "minLength", 1),
  "minItems": ("array", "maxItems", -1),
  "maxItems": ("array", "minItems", 1),
  "minProperties": ("object", "maxProperties", -1),
  "maxProperties": ("object", "minProperties", 1),
  "minimum": ("number", "exclusiveMaximum", 0),
  "maximum": ("number", "exclusiveMinimum", 0),
  "exclusiveMinimum": ("number", "maximum", 0),
  "exclusiveMaximum": ("number", "minimum", 0),
}
_DEPTH = 3  # times that a reference to itself is followed
_MOST = 512  # alternatives


class Inexact(Exception):
  """Some alternative would be left out."""


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

  def all(self, *keywords: str) -> list[Any]:
    """Returns the values of all facts with these keywords."""
    return [fact.value for fact in self.facts if fact.keyword in keywords]

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


class Schemas:
  """All schemas of a document."""

  def __init__(self, root: Any, name: str):
    self.root = root
    self.name = name
    # Items know schemas by identity, which those we make must keep.
    self._made: list[Any] = []
    self._targets: dict[str, Any] = {}
    self._is_exact = False
    # Keywords for whose sake alternatives were left out.
    self.dropped: list[str] = []

  def refuse(self, problem: str) -> UserError:
    """Returns the error that names the schema."""
    return UserError(f"grammar: JSON schema {self.name}: {problem}")

  def made(self, schema: Any, trail: tuple[str, ...] = ()) -> Item:
    """Returns an item of a schema that is not in the document."""
    self._made.append(schema)
    return Item(schema, trail)

  def within(self, item: Item, schema: Any, fits: bool = True) -> Item:
    """Returns the item of a schema that stands within another's."""
    return Item(schema, item.trail, fits)

  def alternatives(
    self, items: Sequence[Item], is_exact: bool = False
  ) -> list[Alternative]:
    """Returns alternatives, one of which a value must fit.

    Args:
      items: all hold.
      is_exact: leaves nothing out.

    Raises:
      Inexact: something would be left out, though it must not be.
      UserError: a keyword that can't be heeded, or too many alternatives.
    """
    before, self._is_exact = self._is_exact, is_exact
    try:
      found = []
      longest = max((item.trail for item in items), key=len, default=())
      for alternative in self._expand(list(items), ATOMS, (), None):
        found.append(dataclasses.replace(alternative, trail=longest))
        if len(found) > _MOST:
          raise self.refuse(
            f"its anyOf, oneOf and the like make more than {_MOST} "
            "alternatives; use fewer of them"
          )
      return found
    finally:
      self._is_exact = before

  def _drop(self, keyword: str) -> None:
    """Leaves an alternative out."""
    if self._is_exact:
      raise Inexact
    self.dropped.append(keyword)

  def _expand(
    self,
    pending: list[Item],
    types: frozenset[str],
    facts: tuple[Fact, ...],
    values: tuple[Any, ...] | None,
  ) -> Iterator[Alternative]:
    choices: list[list[list[Item]]] = []
    pending = list(pending)
    while pending:
      item = pending.pop(0)
      schema = item.schema
      if isinstance(schema, bool):
        if schema != item.fits:
          return
        continue
      if not item.fits:
        choices.append(self._negated(item))
        continue
      for keyword, value in schema.items():
        if keyword == "type":
          types &= _atoms(value)
        elif keyword in ("enum", "const"):
          own = tuple(value if keyword == "enum" else [value])
          values = own if values is None else tuple(
            v for v in values if any(same(v, o) for o in own)
          )  # fmt: skip
        elif keyword == "$ref":
          target = self._followed(item, value, True)
          if target is None:
            return
          pending.insert(0, target)
        elif keyword == "allOf":
          pending += [self.within(item, v) for v in value]
        elif keyword == "not":
          pending.append(self.within(item, value, False))
        elif keyword in _JOINING:
          choices += self._choices(item, keyword, value)
        else:
          self._require_known(schema, keyword)
          if keyword not in ANNOTATIONS:
            facts += (Fact(keyword, value, item),)
    if not types:
      return
    if choices:
      for choice in choices[0]:
        yield from self._chosen(choice, choices[1:], types, facts, values)
      return
    if not self._is_exact:
      types = _implied(types, facts)
    yield Alternative(types, facts, values)

  def _chosen(
    self,
    choice: list[Item],
    rest: list[list[list[Item]]],
    types: frozenset[str],
    facts: tuple[Fact, ...],
    values: tuple[Any, ...] | None,
  ) -> Iterator[Alternative]:
    """Expands one choice of the first list, and every one of the others."""
    if not rest:
      yield from self._expand(choice, types, facts, values)
      return
    for other in rest[0]:
      yield from self._chosen(choice + other, rest[1:], types, facts, values)

  def _choices(
    self, item: Item, keyword: str, value: Any
  ) -> list[list[list[Item]]]:
    """Returns lists of alternatives; one of each list must hold."""
    if keyword == "anyOf":
      return [[[self.within(item, v)] for v in value]]
    if keyword == "oneOf":
      own = {k: v for k, v in item.schema.items() if k != "oneOf"}
      rest = self.made(own, item.trail)
      return [[self._only(item, n, value, rest) for n in range(len(value))]]
    if keyword == "if":
      yes, no = self.within(item, value), self.within(item, value, False)
      schema = item.schema
      return [[
        [yes, *([self.within(item, schema["then"])]
                if "then" in schema else [])],
        [no, *([self.within(item, schema["else"])]
               if "else" in schema else [])],
      ]]  # fmt: skip
    if keyword in ("dependentRequired", "dependentSchemas"):
      found = []
      for name, needed in value.items():
        there = [self.made({"type": "object", "required": [name]}, item.trail)]
        if keyword == "dependentRequired":
          there.append(self.made({"required": needed}, item.trail))
        else:
          there.append(self.within(item, needed))
        found.append([[self.made({ABSENT: [name]}, item.trail)], there])
      return found
    return []  # then and else, which belong to if

  def _only(
    self, item: Item, n: int, schemas: Sequence[Any], rest: Item
  ) -> list[Item]:
    """Returns items of fitting one schema, and none of the others."""
    found = [self.within(item, schemas[n])]
    types = frozenset().union(
      *(a.types for a in self.alternatives([rest, found[0]]))
    )
    # Where no type is named, only those that are meant come out.
    found.append(self.made({"type": sorted(types)}, item.trail))
    for m, other in enumerate(schemas):
      if m != n and not self.is_impossible(
        [rest, *found, self.within(item, other)]
      ):
        found.append(self.within(item, other, False))
    return found

  def is_impossible(self, items: Sequence[Item], depth: int = 3) -> bool:
    """Returns True where certainly no value fits; False says nothing."""
    try:
      found = self.alternatives(items, is_exact=True)
    except Inexact:
      return False
    return all(self._is_impossible(a, depth) for a in found)

  def _is_impossible(self, a: Alternative, depth: int) -> bool:
    types = a.types
    if a.values is not None:
      types &= {type_of(value) for value in a.values}
    if a.least("minLength") > a.most("maxLength"):
      types -= {"string"}
    if a.bounds().is_empty:
      types -= {"integer", "fraction"}
    if a.least("minItems") > a.most("maxItems"):
      types -= {"array"}
    if not types:
      return True
    return types <= {"object"} and depth > 0 and any(
      self.is_impossible(self._property(a, name), depth - 1)
      for names in a.all("required") for name in names
    )  # fmt: skip

  def _property(self, a: Alternative, name: str) -> list[Item]:
    """Returns what a required property must fit, at the least."""
    found = [Item(False) for names in a.all(ABSENT) if name in names]
    for fact in a.facts:
      if fact.keyword in ("properties", PROPERTY) and name in fact.value:
        found.append(self.within(fact.owner, fact.value[name]))
      if (
        fact.keyword == "additionalProperties"
        and name not in fact.owner.schema.get("properties", {})
        and "patternProperties" not in fact.owner.schema
      ):
        found.append(self.within(fact.owner, fact.value))
    return found

  def _negated(self, item: Item) -> list[list[Item]]:
    """Returns alternatives of not fitting a schema."""
    found: list[list[Item]] = []

    def add(schema: Any) -> None:
      found.append([self.made(schema, item.trail)])

    for keyword, value in item.schema.items():
      if keyword == "type":
        add({"type": sorted(ATOMS - _atoms(value))})
      elif keyword in ("const", "enum"):
        add({NEVER: [value] if keyword == "const" else value})
      elif keyword in _NEGATED:
        kind, other, change = _NEGATED[keyword]
        if not keyword.startswith("min") or kind == "number" or value > 0:
          add({"type": kind, other: value + change if change else value})
      elif keyword == "pattern":
        add({"type": "string", NO_PATTERN: value})
      elif keyword == "required":
        for name in value:
          add({"type": "object", ABSENT: [name]})
      elif keyword in ("properties", PROPERTY):
        for name, own in value.items():
          add({"type": "object", "required": [name],
               PROPERTY: {name: {"not": own}}})  # fmt: skip
      elif keyword == "contains" and not {"minContains", "maxContains"} & set(
        item.schema
      ):
        add({"type": "array", "items": {"not": value}})
      elif keyword == "allOf":
        found += [[self.within(item, v, False)] for v in value]
      elif keyword == "anyOf":
        found.append([self.within(item, v, False) for v in value])
      elif keyword == "not":
        found.append([self.within(item, value)])
      elif keyword == "$ref":
        target = self._followed(item, value, False)
        found += [] if target is None else [[target]]
      else:
        self._require_known(item.schema, keyword)
        if keyword not in ANNOTATIONS:
          self._drop(keyword)
    return found

  def _followed(self, item: Item, reference: str, fits: bool) -> Item | None:
    """Returns the item of a reference; None if it was followed too often."""
    if reference not in self._targets:
      self._targets[reference] = self._find(reference)
    if item.trail.count(reference) >= _DEPTH:
      self._drop("$ref")
      return None
    trail = tuple(sorted((*item.trail, reference)))
    return Item(self._targets[reference], trail, fits)

  def _find(self, reference: str) -> Any:
    if reference != "#" and not reference.startswith("#/"):
      raise self.refuse(
        f"$ref {shown(reference)} is not within the schema; only #, and "
        'pointers such as "#/$defs/name", are followed'
      )
    found = self.root
    for part in reference.split("/")[1:]:
      key = urllib.parse.unquote(part).replace("~1", "/").replace("~0", "~")
      if isinstance(found, list) and key.isdecimal() and (
        int(key) < len(found)
      ):  # fmt: skip
        found = found[int(key)]
      elif isinstance(found, Mapping) and key in found:
        found = found[key]
      else:
        raise self.refuse(f"$ref {shown(reference)} is nowhere in it")
    if not isinstance(found, Mapping | bool):
      raise self.refuse(f"$ref {shown(reference)} does not lead to a schema")
    return found

  def _require_known(self, schema: Mapping[str, Any], keyword: str) -> None:
    if keyword == "$id" and schema is not self.root:
      raise self.refuse("$id would not be heeded below the root; leave it out")
    if keyword in _OF_TYPE or keyword in ANNOTATIONS | _JOINING | _OURS:
      return
    known = sorted(_OF_TYPE.keys() | ANNOTATIONS | _JOINING)
    close = difflib.get_close_matches(keyword, known, 1)
    advice = f"did you mean {close[0]}?" if close else "leave it out"
    raise self.refuse(
      f"{keyword} would not be heeded in {shown(json.dumps(schema))}; {advice}"
    )


def _decimal(value: float) -> decimal.Decimal:
  return decimal.Decimal(repr(value))


def _atoms(types: Any) -> frozenset[str]:
  names = {types} if isinstance(types, str) else set(types)
  if "number" in names:
    names |= {"integer", "fraction"}
  return frozenset(names) & ATOMS


def _implied(types: frozenset[str], facts: Sequence[Fact]) -> frozenset[str]:
  """Returns the types that the facts are about, if no type is named.

  Strictly {"minLength": 2} takes any number, too; nobody means that.
  """
  if types != ATOMS:
    return types
  named = {t for fact in facts for t in _OF_TYPE.get(fact.keyword, ())}
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
