"""What automata of values of all types have in common."""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from mtpjax.decode.grammar.alternatives import Schemas
from mtpjax.decode.grammar.ecma import pattern_dfa
from mtpjax.decode.grammar.facts import Alternative, Fact, Item, same, type_of
from mtpjax.decode.grammar.formats import FORMATS
from mtpjax.decode.grammar.grammar import shown
from mtpjax.decode.grammar.machine import NO_TEXT, Dfa
from mtpjax.errors import UserError

ANYTHING = "anything"  # in trails: how often a value without a schema nests
_NESTED = 3


class Context:
  """One document, on its way to an automaton.

  Attributes:
    schemas: takes it apart.
    value: returns texts of values that fit all items; arrays and objects have
      values in them.
    reasons: why nothing fits some alternative, each with the schema.
  """

  def __init__(
    self, schemas: Schemas, value: Callable[[tuple[Item, ...]], Dfa]
  ):
    import jsonschema

    self.schemas = schemas
    self.value = value
    self.reasons: list[tuple[str, Any]] = []
    root = schemas.document.root
    if isinstance(root, dict):
      root = {k: v for k, v in root.items() if k not in ("$schema", "$id")}
    self._judge = jsonschema.Draft202012Validator(
      root, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )

  def nothing(self, reason: str, owner: Item | None) -> Dfa:
    """Returns the automaton of no text, and notes why and where it is so."""
    self.reasons.append((reason, owner and owner.schema))
    return NO_TEXT

  def refuse(self, problem: str, owner: Item) -> UserError:
    """Returns the error that names the document and the place."""
    return self.schemas.document.refuse(problem, owner.schema)

  def anything(self, a: Alternative) -> tuple[Item, ...]:
    """Returns what a value without a schema must fit: not nest for ever."""
    depth = a.trail.count(ANYTHING)
    if depth >= _NESTED:
      return (Item(False),)
    return (Item(True, (ANYTHING,) * (depth + 1)),)

  def format(self, fact: Fact) -> Dfa:
    """Returns the strings of a format, over code points."""
    if fact.value not in FORMATS:
      raise self.refuse(
        f"format {shown(fact.value)} would not be heeded; use a pattern, or "
        f"one of {', '.join(FORMATS)}",
        fact.owner,
      )
    return pattern_dfa(FORMATS[fact.value])

  def pattern(self, fact: Fact, pattern: str, is_wide: bool = False) -> Dfa:
    """Returns the strings of a pattern of a fact, over code points."""
    try:
      return pattern_dfa(pattern, is_wide)
    except (ValueError, RecursionError) as error:
      raise self.refuse(
        f"pattern {shown(pattern)} can't be used ({error}); correct it, "
        r"without look-around, back-references and \b",
        fact.owner,
      ) from error

  def kept(self, a: Alternative, kind: str) -> list[Any]:
    """Returns which values of null or boolean an alternative has."""
    values = [None] if kind == "null" else [True, False]
    return [
      value
      for value in values
      if kind in a.types and not any(same(value, n) for n in a.never)
    ]

  def fitting(self, a: Alternative, items: Sequence[Item]) -> list[Any]:
    """Returns which of the values of an alternative fit."""
    found = []
    for value in a.values or ():
      fits = type_of(value) in a.types
      fits = fits and not any(same(value, n) for n in a.never)
      fits = fits and all(self.is_valid(item, value) for item in items)
      if fits and isinstance(value, str):
        fits = all(
          self.format(fact).accepts(map(ord, value)) for fact in a.of("format")
        )
      if fits:
        found.append(value)
    if not found:
      self.nothing("no value of enum or const fits the rest of it", items[0])
    return found

  def is_valid(self, item: Item, value: Any) -> bool:
    """Returns whether a single value fits an item."""
    import referencing.exceptions

    judge = self._judge.evolve(schema=item.schema)
    try:
      return bool(judge.is_valid(value)) == item.fits
    except (re.error, referencing.exceptions.Unresolvable) as error:
      reason = " ".join(str(error).split())
      raise self.refuse(
        f"whether {shown(json.dumps(value))} fits cannot be judged ({reason}); "
        "leave the pattern or reference there out",
        item,
      ) from error

  def listable(self, items: tuple[Item, ...]) -> list[Any] | None:
    """Returns all values that fit, None if they can't be listed."""
    found: list[Any] = []
    for a in self.schemas.alternatives(items):
      if a.values is not None:
        own = self.fitting(a, items)
      elif a.types <= {"null", "boolean"}:
        own = self.kept(a, "null") + self.kept(a, "boolean")
      else:
        return None
      for value in own:
        if not any(same(value, f) for f in found):
          found.append(value)
    return found
