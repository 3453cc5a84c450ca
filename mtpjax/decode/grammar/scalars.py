"""Numbers and strings that fit what schemas ask."""

import dataclasses
import decimal

from mtpjax.decode.grammar.characters import ANY
from mtpjax.decode.grammar.context import Context
from mtpjax.decode.grammar.ecma import pattern_dfa
from mtpjax.decode.grammar.facts import NO_PATTERN, Alternative, type_of
from mtpjax.decode.grammar.machine import (
  MAX_STATES,
  Dfa,
  TooLarge,
  intersect,
  literal,
  subtract,
)
from mtpjax.decode.grammar.numbers import Bounds, equal_dfa, number_dfa

STRINGS = Dfa([[(low, high, 0) for low, high in ANY]], frozenset([0]))


def number_of(context: Context, a: Alternative) -> Dfa:
  """Returns texts of numbers that fit an alternative."""
  bounds = a.bounds()
  if bounds.is_empty:
    return context.nothing(
      f"its least number, {bounds.low}, is above its largest, {bounds.high}",
      a.owner,
    )
  steps = {decimal.Decimal(repr(v)) for v in a.all("multipleOf")}
  if len(steps) > 1:
    raise context.refuse(
      "several multipleOf would not be heeded; join them into one",
      a.of("multipleOf")[0].owner,
    )
  try:
    found = number_dfa(dataclasses.replace(
      bounds, step=next(iter(steps), None),
      is_integer="fraction" not in a.types,
    ))  # fmt: skip
    never = [
      decimal.Decimal(repr(v))
      for v in a.never
      if type_of(v) in ("integer", "fraction")
    ]
    if never or "integer" not in a.types:
      # Written without exponents, so that equal ones are found.
      plain = number_dfa(Bounds(decimal.Decimal(-(10**15))))
      found = intersect(found, plain)
    if "integer" not in a.types:
      found = subtract(found, pattern_dfa(r"^-?[0-9]+(\.0+)?$"))
    if never:
      found = subtract(found, equal_dfa(never))
  except ValueError as error:
    raise context.refuse(
      f"multipleOf: {error}; leave it out", a.of("multipleOf")[0].owner
    ) from error
  if found.is_empty:
    context.nothing("no number is within its bounds", a.owner)
  return found


def string_of(context: Context, a: Alternative) -> Dfa:
  """Returns strings that fit an alternative, over code points."""
  found = STRINGS
  for fact in a.of("format"):
    found = both(found, context.format(fact))
  for fact in a.of("pattern"):
    found = both(found, context.pattern(fact, fact.value))
  for fact in a.of(NO_PATTERN):
    found = subtract(found, context.pattern(fact, fact.value, is_wide=True))
  least, most = a.least("minLength"), a.most("maxLength")
  if least > most:
    return context.nothing(
      f"minLength {least} is above maxLength {most:.0f}",
      a.of("minLength")[0].owner,
    )
  if least or most < float("inf"):
    found = both(found, _lengths(least, most))
  never = [map(ord, v) for v in a.never if isinstance(v, str)]
  if never:
    found = subtract(found, literal(never))
  if found.is_empty:
    context.nothing("no string fits its pattern, format and length", a.owner)
  return found


def both(left: Dfa, right: Dfa) -> Dfa:
  """Returns the strings in both; cheap where the left is all of them."""
  return right if left is STRINGS else intersect(left, right)


def _lengths(least: int, most: float) -> Dfa:
  """Returns strings of some numbers of code points."""
  if max(least, most if most < float("inf") else 0) >= MAX_STATES:
    raise TooLarge
  last = int(most) if most < float("inf") else least
  edges = [[(low, high, n + 1) for low, high in ANY] for n in range(last)]
  edges.append(
    [] if most < float("inf") else [(low, high, last) for low, high in ANY]
  )
  return Dfa(edges, frozenset(range(least, last + 1)))
