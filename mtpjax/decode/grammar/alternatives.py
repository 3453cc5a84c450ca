"""JSON schemas, taken apart into simple alternatives.

A value must fit all of some schemas. `anyOf`, `oneOf`, `not`, `if` and the
rest that joins schemas are resolved here, and what is left are alternatives:
types, and facts (keyword, value) that all hold. An alternative may leave out
texts that would fit, but lets none through that does not.
"""

import dataclasses
import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mtpjax.decode.grammar.document import Document
from mtpjax.decode.grammar.facts import (
  ABSENT,
  ANNOTATIONS,
  ATOMS,
  NEVER,
  NO_PATTERN,
  OF_TYPE,
  OURS,
  PROPERTY,
  Alternative,
  Fact,
  Item,
  atoms_of,
  implied,
  same,
  type_of,
)
from mtpjax.decode.grammar.grammar import shown

_JOINING = frozenset((
  "type", "enum", "const", "$ref", "allOf", "anyOf", "oneOf", "not", "if",
  "then", "else", "dependentRequired", "dependentSchemas",
))  # fmt: skip
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


class Schemas:
  """Takes the schemas of a document apart.

  Attributes:
    document: where they stand.
    dropped: keywords for whose sake alternatives were left out, with the
      schemas they stand in.
  """

  def __init__(self, document: Document):
    self.document = document
    self.dropped: list[tuple[str, Any]] = []
    self._is_exact = False

  def made(self, schema: Any, origin: Item) -> Item:
    """Returns an item of a schema that is not in the document.

    Args:
      schema: the schema.
      origin: what it was made of.
    """
    # Items know schemas by identity.
    self.document.keep(schema, origin.schema)
    return Item(schema, origin.trail)

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
          raise self.document.refuse(
            f"its anyOf, oneOf and the like make more than {_MOST} "
            "alternatives; use fewer of them",
            items[0].schema,
          )
      return found
    finally:
      self._is_exact = before

  def _drop(self, keyword: str, schema: Any) -> None:
    """Leaves an alternative out."""
    if self._is_exact:
      raise Inexact
    self.dropped.append((keyword, schema))

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
          types &= atoms_of(value)
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
      types = implied(types, facts)
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
      rest = self.made(own, item)
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
        there = [self.made({"type": "object", "required": [name]}, item)]
        if keyword == "dependentRequired":
          there.append(self.made({"required": needed}, item))
        else:
          there.append(self.within(item, needed))
        found.append([[self.made({ABSENT: [name]}, item)], there])
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
    found.append(self.made({"type": sorted(types)}, item))
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
      found.append([self.made(schema, item)])

    for keyword, value in item.schema.items():
      if keyword == "type":
        add({"type": sorted(ATOMS - atoms_of(value))})
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
          self._drop(keyword, item.schema)
    return found

  def _followed(self, item: Item, reference: str, fits: bool) -> Item | None:
    """Returns the item of a reference; None if it was followed too often."""
    if item.trail.count(reference) >= _DEPTH:
      self._drop("$ref", item.schema)
      return None
    trail = tuple(sorted((*item.trail, reference)))
    return Item(self.document.find(reference, item.schema), trail, fits)

  def _require_known(self, schema: Mapping[str, Any], keyword: str) -> None:
    if keyword == "$id" and schema is not self.document.root:
      raise self.document.refuse(
        "$id would not be heeded below the root; leave it out", schema
      )
    if keyword in OF_TYPE or keyword in ANNOTATIONS | _JOINING | OURS:
      return
    known = sorted(OF_TYPE.keys() | ANNOTATIONS | _JOINING)
    close = difflib.get_close_matches(keyword, known, 1)
    advice = f"did you mean {close[0]}?" if close else "leave it out"
    raise self.document.refuse(
      f"{keyword} would not be heeded in {shown(json.dumps(schema))}; {advice}",
      schema,
    )
