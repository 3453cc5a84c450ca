"""Objects that fit what schemas ask."""

from collections.abc import Sequence

from mtpjax.decode.grammar import json_text
from mtpjax.decode.grammar.context import Context
from mtpjax.decode.grammar.facts import (
  ABSENT,
  PROPERTY,
  Alternative,
  Fact,
  Item,
)
from mtpjax.decode.grammar.listing import listed
from mtpjax.decode.grammar.machine import (
  NO_TEXT,
  Dfa,
  intersect,
  literal,
  subtract,
  union,
)
from mtpjax.decode.grammar.scalars import STRINGS, both, string_of


def object_of(context: Context, a: Alternative) -> Dfa:
  """Returns texts of objects that fit an alternative."""
  least, most = a.least("minProperties"), a.most("maxProperties")
  required = list(dict.fromkeys(n for v in a.all("required") for n in v))
  names = list(dict.fromkeys(
    [n for v in a.all("properties", PROPERTY) for n in v] + required
    + [n for v in a.all(ABSENT) for n in v]
  ))  # fmt: skip
  least = max(least, len(required))
  if least > most:
    return context.nothing(
      f"{least} properties are needed, more than maxProperties {most:.0f}",
      a.owner,
    )
  parts: list[tuple[Dfa, Dfa]] = []
  is_needed = []
  for name in names:
    value = context.value(_property(context, a, name))
    if value.is_empty and name in required:
      inner, schema = context.reasons[-1] if context.reasons else ("", None)
      reason = f"no value fits the required property {name!r}"
      context.reasons.append(
        (f"{reason}: {inner}" if inner else reason, schema)
      )
      return NO_TEXT
    if not value.is_empty:
      parts.append((json_text.key_dfa(name), value))
      is_needed.append(name in required)
  extras = _extras(context, a, names, least > len(parts))
  n, has_extras = len(parts), bool(extras)
  if least > n + has_extras:
    if not has_extras:
      return context.nothing(
        f"minProperties {least} is above its {n} properties", a.owner
      )
    raise context.refuse(
      f"minProperties {least} would not be heeded with {n} properties of "
      "known names; name more of them",
      a.of("minProperties")[0].owner,
    )
  # (next property, distinct ones so far, all so far, whether extras began);
  # counts go no further than they matter.
  tops = max(least, 1), 1 if most == float("inf") else int(most)

  def following(state):
    at, n_distinct, n_all, is_extra = state
    if n_all >= most:
      return []
    to_all = min(n_all + 1, tops[1])
    counted = min(n_distinct + 1, tops[0])
    found = []
    for i in range(at, n):
      found.append(((i + 1, counted, to_all, False), parts[i]))
      if is_needed[i]:
        return found
    after = n_distinct if is_extra else counted
    return found + [((n, after, to_all, True), extra) for extra in extras]

  def is_final(state):
    return state[1] >= least and not any(is_needed[state[0] :])

  return listed(
    "{", "}", (0, 0, 0, False), following, is_final, lambda s: s[2] == 0
  )


def _property(context: Context, a: Alternative, name: str) -> tuple[Item, ...]:
  """Returns what the value of a property must fit."""
  if any(name in names for names in a.all(ABSENT)):
    return (Item(False),)
  found: list[Item] = []
  for fact in a.facts:
    if fact.keyword in ("properties", PROPERTY) and name in fact.value:
      found.append(context.schemas.within(fact.owner, fact.value[name]))
    if fact.keyword == "patternProperties":
      found += [
        context.schemas.within(fact.owner, own)
        for pattern, own in fact.value.items()
        if context.pattern(fact, pattern, is_wide=True).accepts(map(ord, name))
      ]
    if fact.keyword == "additionalProperties" and not _is_named(
      context, fact, name
    ):
      found.append(context.schemas.within(fact.owner, fact.value))
    if fact.keyword == "propertyNames" and not context.is_valid(
      context.schemas.within(fact.owner, fact.value), name
    ):
      return (Item(False),)
  return tuple(found) or context.anything(a)


def _is_named(context: Context, additional: Fact, name: str) -> bool:
  """Whether a name is certainly no additional property."""
  schema = additional.owner.schema
  return name in schema.get("properties", {}) or any(
    context.pattern(additional, pattern).accepts(map(ord, name))
    for pattern in schema.get("patternProperties", {})
  )


def _extras(
  context: Context, a: Alternative, names: Sequence[str], is_short: bool
) -> list[tuple[Dfa, Dfa]]:
  """Returns names and values of properties that are not named."""
  # Where each pattern stands.
  patterns = {p: f for f in a.of("patternProperties") for p in f.value}
  additional = a.of("additionalProperties")
  is_open = (
    any(f.value is not False for f in additional)
    or not a.all("properties", "patternProperties")
    or is_short
  )
  if not patterns and not is_open:
    return []
  keys = STRINGS
  for fact in a.facts:
    if fact.keyword == "propertyNames":
      keys = both(keys, _names(context, fact))
  if names:
    keys = subtract(keys, literal(map(ord, name) for name in names))
  wide = {p: context.pattern(f, p, is_wide=True) for p, f in patterns.items()}
  found = []
  for pattern in [*patterns, None] if is_open else patterns:
    own_keys, items = keys, []
    if pattern is not None:
      own_keys = intersect(keys, context.pattern(patterns[pattern], pattern))
    for other in patterns:
      if other != pattern:
        own_keys = subtract(own_keys, wide[other])
    for fact in a.facts:
      if fact.keyword == "patternProperties" and pattern in fact.value:
        items.append(context.schemas.within(fact.owner, fact.value[pattern]))
      if fact.keyword == "additionalProperties" and pattern not in (
        fact.owner.schema.get("patternProperties", {})
      ):
        items.append(context.schemas.within(fact.owner, fact.value))
    value = context.value(tuple(items) or context.anything(a))
    key = json_text.string_dfa(own_keys)
    if not value.is_empty and not key.is_empty:
      found.append((key, value))
  return found


def _names(context: Context, fact: Fact) -> Dfa:
  """Returns names that fit, over code points."""
  item = context.schemas.within(fact.owner, fact.value)
  found = []
  for a in context.schemas.alternatives(
    [item, context.schemas.made({"type": "string"}, item)]
  ):
    if a.values is not None:
      found.append(literal(
        map(ord, v) for v in context.fitting(a, [item]) if isinstance(v, str)
      ))  # fmt: skip
    elif "string" in a.types:
      found.append(string_of(context, a))
  return union(found)
