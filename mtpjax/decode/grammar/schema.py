"""JSON schemas as automata over the bytes of the texts that fit them."""

import dataclasses
import decimal
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from mtpjax.decode.grammar import json_text
from mtpjax.decode.grammar.characters import ANY
from mtpjax.decode.grammar.ecma import pattern_dfa
from mtpjax.decode.grammar.facts import (
  ABSENT,
  NEVER,
  NO_PATTERN,
  PROPERTY,
  Alternative,
  Fact,
  Item,
  Schemas,
  same,
  type_of,
)
from mtpjax.decode.grammar.formats import FORMATS
from mtpjax.decode.grammar.grammar import shown
from mtpjax.decode.grammar.machine import (
  MAX_STATES,
  Dfa,
  Nfa,
  TooLarge,
  intersect,
  literal,
  subtract,
  union,
)
from mtpjax.decode.grammar.numbers import Bounds, equal_dfa, number_dfa

_NOTHING = Dfa((), frozenset())
_STRINGS = Dfa([[(low, high, 0) for low, high in ANY]], frozenset([0]))
_ANYTHING = "anything"  # in trails: how often a value without a schema nests
_NESTED = 3
_FREE: dict[Any, Dfa] = {}  # any value, by how deep it stands
_STRING = {"type": "string"}
_FEW = 7  # values whose subsets are told apart


def schema_dfa(schema: Any, name: str) -> Dfa:
  """Returns texts that fit a schema, each of them complete JSON.

  Args:
    schema: the schema, as JSON gives it; a valid one.
    name: of it, for messages.

  Returns:
    The automaton. Properties come in the order of the schema, with at most
    one space around what separates them.

  Raises:
    UserError: something in it can't be held to, or nothing fits it.
    RecursionError: it is nested too deep.
  """
  builder = _Builder(Schemas(schema, name))
  try:
    found = builder.value((Item(schema),))
  except TooLarge as error:
    raise builder.schemas.refuse(
      f"it has more than {MAX_STATES} states; repeat less, or bound the "
      "repetitions (maxLength, maxItems) lower"
    ) from error
  if found.is_empty:
    dropped = sorted(set(builder.schemas.dropped) - {"$ref"})
    if dropped:
      raise builder.schemas.refuse(
        f"{', '.join(dropped)} would not be heeded within not, or in oneOf "
        "whose alternatives overlap; use anyOf, or leave it out"
      )
    reason = f" ({builder.reasons[-1]})" if builder.reasons else ""
    raise builder.schemas.refuse(f"admits nothing{reason}; mend it")
  return found


class _Builder:
  def __init__(self, schemas: Schemas):
    import jsonschema

    self.schemas = schemas
    self.reasons: list[str] = []
    self._values: dict[Any, Dfa] = {}
    root = schemas.root
    if isinstance(root, dict):
      root = {k: v for k, v in root.items() if k not in ("$schema", "$id")}
    self._judge = jsonschema.Draft202012Validator(
      root, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )

  def value(self, items: tuple[Item, ...]) -> Dfa:
    """Returns texts of values that fit all items."""
    values: dict[Any, Dfa] = self._values
    key: Any = frozenset(item.key for item in items)
    if all(item.schema is True for item in items):
      # Whatever the document is.
      values, key = _FREE, max(item.trail.count(_ANYTHING) for item in items)
    if key not in values:
      found = self.schemas.alternatives(items)
      values[key] = union_of([self._alternative(a, items) for a in found])
      if not found:
        self.reasons.append(
          "what it asks for contradicts itself, or never ends"
        )
    return values[key]

  def _alternative(self, a: Alternative, items: tuple[Item, ...]) -> Dfa:
    if a.values is not None:
      return json_text.value_dfa(self._fitting(a, items))
    parts = [json_text.value_dfa(self._kept(a, kind)) for kind in
             ("null", "boolean")]  # fmt: skip
    if {"integer", "fraction"} & a.types:
      parts.append(self._number(a))
    if "string" in a.types:
      parts.append(json_text.string_dfa(self._string(a)))
    never = [type_of(v) for values in a.all(NEVER) for v in values]
    if "array" in a.types and "array" not in never:
      parts.append(self._array(a))
    if "object" in a.types and "object" not in never:
      parts.append(self._object(a))
    return union_of(parts)

  def _kept(self, a: Alternative, kind: str) -> list[Any]:
    values = [None] if kind == "null" else [True, False]
    never = [v for values in a.all(NEVER) for v in values]
    return [
      value
      for value in values
      if kind in a.types and not any(same(value, n) for n in never)
    ]

  def _fitting(self, a: Alternative, items: Sequence[Item]) -> list[Any]:
    """Returns which of the values of an alternative fit."""
    never = [v for values in a.all(NEVER) for v in values]
    found = []
    for value in a.values or ():
      fits = type_of(value) in a.types
      fits = fits and not any(same(value, n) for n in never)
      fits = fits and all(self._is_valid(item, value) for item in items)
      if fits and isinstance(value, str):
        fits = all(
          self._format(name).accepts(map(ord, value))
          for name in a.all("format")
        )
      if fits:
        found.append(value)
    if not found:
      self.reasons.append("no value of enum or const fits the rest of it")
    return found

  def _is_valid(self, item: Item, value: Any) -> bool:
    import referencing.exceptions

    judge = self._judge.evolve(schema=item.schema)
    try:
      return bool(judge.is_valid(value)) == item.fits
    except (re.error, referencing.exceptions.Unresolvable) as error:
      reason = " ".join(str(error).split())
      raise self.schemas.refuse(
        f"whether {shown(json.dumps(value))} fits cannot be told ({reason}); "
        "leave the pattern or reference there out"
      ) from error

  def _number(self, a: Alternative) -> Dfa:
    bounds = a.bounds()
    if bounds.is_empty:
      self.reasons.append(
        f"its least number, {bounds.low}, is above its largest, {bounds.high}"
      )
      return _NOTHING
    steps = {decimal.Decimal(repr(v)) for v in a.all("multipleOf")}
    if len(steps) > 1:
      raise self.schemas.refuse("several multipleOf would not be heeded; join "
                                "them into one")  # fmt: skip
    try:
      found = number_dfa(dataclasses.replace(
        bounds, step=next(iter(steps), None),
        is_integer="fraction" not in a.types,
      ))  # fmt: skip
      never = [
        decimal.Decimal(repr(v))
        for values in a.all(NEVER)
        for v in values
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
      raise self.schemas.refuse(f"multipleOf: {error}; leave it out") from error
    if found.is_empty:
      self.reasons.append("no number is within its bounds")
    return found

  def _string(self, a: Alternative) -> Dfa:
    """Returns the strings themselves, over code points."""
    found = _STRINGS
    for name in a.all("format"):
      found = _both(found, self._format(name))
    for pattern in a.all("pattern"):
      found = _both(found, self._pattern(pattern))
    for pattern in a.all(NO_PATTERN):
      found = subtract(found, self._pattern(pattern, is_wide=True))
    least, most = a.least("minLength"), a.most("maxLength")
    if least > most:
      self.reasons.append(f"minLength {least} is above maxLength {most:.0f}")
      return _NOTHING
    if least or most < float("inf"):
      found = _both(found, _lengths(least, most))
    never = [
      map(ord, v)
      for values in a.all(NEVER)
      for v in values
      if isinstance(v, str)
    ]
    if never:
      found = subtract(found, literal(never))
    if found.is_empty:
      self.reasons.append("no string fits its pattern, format and length")
    return found

  def _format(self, name: str) -> Dfa:
    if name not in FORMATS:
      raise self.schemas.refuse(
        f"format {shown(name)} would not be heeded; use a pattern, or one of "
        f"{', '.join(FORMATS)}"
      )
    return pattern_dfa(FORMATS[name])

  def _pattern(self, pattern: str, is_wide: bool = False) -> Dfa:
    try:
      return pattern_dfa(pattern, is_wide)
    except (ValueError, RecursionError) as error:
      raise self.schemas.refuse(
        f"pattern {shown(pattern)} can't be used ({error}); look-around, "
        r"back-references and \b never can"
      ) from error

  # Arrays.

  def _array(self, a: Alternative) -> Dfa:
    least, most = a.least("minItems"), a.most("maxItems")
    prefix = max((len(v) for v in a.all("prefixItems")), default=0)
    contains = [fact for fact in a.facts if fact.keyword == "contains"]
    if prefix and not (a.all("items") or contains):
      # Further items are allowed, but nobody asked for any.
      most = min(most, max(prefix, least))
    if least > most:
      self.reasons.append(f"minItems {least} is above maxItems {most:.0f}")
      return _NOTHING
    if max(least, most if most < float("inf") else 0) > MAX_STATES:
      raise TooLarge
    if any(a.all("uniqueItems")) and most > 1:
      return self._unique(a, least, most, bool(prefix or contains))
    if len(contains) > 1:
      raise self.schemas.refuse(
        "several contains at once would not be heeded; leave all but one out"
      )
    hits, most_hits, other_most = 0, float("inf"), False
    if contains:
      owner = contains[0].owner.schema
      hits = int(owner.get("minContains", 1))
      most_hits = owner.get("maxContains", most_hits)
      other_most = most_hits < float("inf")
      if hits > most_hits:
        self.reasons.append(
          f"minContains {hits} is above maxContains {most_hits:.0f}"
        )
        return _NOTHING
    top = int(most) if most < float("inf") else max(prefix, least, 1)
    cap = int(most_hits) if other_most else hits

    def following(
      state: tuple[int, int],
    ) -> list[tuple[tuple[int, int], Dfa]]:
      n, n_hits = state
      if n >= most:
        return []
      items = self._items(a, n)
      to = min(n + 1, top)
      if not contains:
        return [((to, 0), self.value(items))]
      fact = contains[0]
      hit = self.schemas.within(fact.owner, fact.value)
      found = []
      if n_hits < cap or not other_most:
        found.append(((to, min(n_hits + 1, cap)), self.value((*items, hit))))
      if other_most:
        items = (*items, dataclasses.replace(hit, fits=False))
      return [*found, ((to, n_hits), self.value(items))]

    return _listed(
      "[", "]", (0, 0), following, lambda s: s[0] >= least and s[1] >= hits,
      lambda s: s[0] == 0,
    )  # fmt: skip

  def _items(self, a: Alternative, n: int) -> tuple[Item, ...]:
    """Returns what item n of an array must fit."""
    found: list[Item] = []
    for fact in a.facts:
      if fact.keyword == "prefixItems" and n < len(fact.value):
        found.append(self.schemas.within(fact.owner, fact.value[n]))
      if fact.keyword == "items" and n >= len(
        fact.owner.schema.get("prefixItems", ())
      ):
        found.append(self.schemas.within(fact.owner, fact.value))
    return tuple(found) or self._anything(a)

  def _anything(self, a: Alternative) -> tuple[Item, ...]:
    """Returns what a value without a schema must fit: not nest for ever."""
    depth = a.trail.count(_ANYTHING)
    if depth >= _NESTED:
      return (Item(False),)
    return (Item(True, (_ANYTHING,) * (depth + 1)),)

  def _unique(
    self, a: Alternative, least: int, most: float, is_mixed: bool
  ) -> Dfa:
    values = None if is_mixed else self._listable(self._items(a, 0))
    if values is None:
      raise self.schemas.refuse(
        "uniqueItems would not be heeded, but with items of an enum; leave it "
        "out"
      )
    if least > len(values):
      self.reasons.append(
        f"minItems {least} is above the {len(values)} values of unique items"
      )
      return _NOTHING
    parts = [json_text.value_dfa([value]) for value in values]
    if len(values) > _FEW:  # whose subsets are too many: they come in order
      top = int(min(max(least, 1), len(values))) if most >= len(values) else (
        int(most)
      )  # fmt: skip
      return _listed(
        "[", "]", (0, 0),
        lambda s: [
          ((n + 1, min(s[1] + 1, top)), parts[n])
          for n in range(s[0], len(values))
          if s[1] < most
        ],
        lambda s: s[1] >= least, lambda s: s[0] == 0,
      )  # fmt: skip
    return _listed(
      "[", "]", frozenset(),
      lambda used: [
        (used | {n}, parts[n])
        for n in range(len(values))
        if n not in used and len(used) < most
      ],
      lambda used: len(used) >= least, lambda used: not used,
    )  # fmt: skip

  def _listable(self, items: tuple[Item, ...]) -> list[Any] | None:
    """Returns all values that fit, None if they can't be listed."""
    found: list[Any] = []
    for a in self.schemas.alternatives(items):
      if a.values is not None:
        own = self._fitting(a, items)
      elif a.types <= {"null", "boolean"}:
        own = self._kept(a, "null") + self._kept(a, "boolean")
      else:
        return None
      for value in own:
        if not any(same(value, f) for f in found):
          found.append(value)
    return found

  # Objects.

  def _object(self, a: Alternative) -> Dfa:
    least, most = a.least("minProperties"), a.most("maxProperties")
    required = list(dict.fromkeys(n for v in a.all("required") for n in v))
    names = list(dict.fromkeys(
      [n for v in a.all("properties", PROPERTY) for n in v] + required
      + [n for v in a.all(ABSENT) for n in v]
    ))  # fmt: skip
    least = max(least, len(required))
    if least > most:
      self.reasons.append(
        f"{least} properties are needed, more than maxProperties {most:.0f}"
      )
      return _NOTHING
    parts: list[tuple[Dfa, Dfa]] = []
    is_needed = []
    for name in names:
      value = self.value(self._property(a, name))
      if value.is_empty and name in required:
        inner = f": {self.reasons[-1]}" if self.reasons else ""
        self.reasons.append(
          f"no value fits the required property {name!r}{inner}"
        )
        return _NOTHING
      if not value.is_empty:
        parts.append((json_text.key_dfa(name), value))
        is_needed.append(name in required)
    extras = self._extras(a, names, least > len(parts))
    n, has_extras = len(parts), bool(extras)
    if least > n + has_extras:
      if not has_extras:
        self.reasons.append(
          f"minProperties {least} is above its {n} properties"
        )
        return _NOTHING
      raise self.schemas.refuse(
        f"minProperties {least} would not be heeded with {n} properties of "
        "known names; name more of them"
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

    return _listed(
      "{", "}", (0, 0, 0, False), following, is_final, lambda s: s[2] == 0
    )

  def _property(self, a: Alternative, name: str) -> tuple[Item, ...]:
    """Returns what the value of a property must fit."""
    if any(name in names for names in a.all(ABSENT)):
      return (Item(False),)
    found: list[Item] = []
    for fact in a.facts:
      if fact.keyword in ("properties", PROPERTY) and name in fact.value:
        found.append(self.schemas.within(fact.owner, fact.value[name]))
      if fact.keyword == "patternProperties":
        found += [
          self.schemas.within(fact.owner, own)
          for pattern, own in fact.value.items()
          if self._pattern(pattern, is_wide=True).accepts(map(ord, name))
        ]
      if fact.keyword == "additionalProperties" and not self._is_named(
        fact, name
      ):
        found.append(self.schemas.within(fact.owner, fact.value))
      if fact.keyword == "propertyNames" and not self._is_valid(
        self.schemas.within(fact.owner, fact.value), name
      ):
        return (Item(False),)
    return tuple(found) or self._anything(a)

  def _is_named(self, additional: Fact, name: str) -> bool:
    """Whether a name is certainly no additional property."""
    schema = additional.owner.schema
    return name in schema.get("properties", {}) or any(
      self._pattern(pattern).accepts(map(ord, name))
      for pattern in schema.get("patternProperties", {})
    )

  def _extras(
    self, a: Alternative, names: Sequence[str], is_short: bool
  ) -> list[tuple[Dfa, Dfa]]:
    """Returns names and values of properties that are not named."""
    patterns = list(dict.fromkeys(
      p for own in a.all("patternProperties") for p in own
    ))  # fmt: skip
    additional = [f for f in a.facts if f.keyword == "additionalProperties"]
    is_open = (
      any(f.value is not False for f in additional)
      or not a.all("properties", "patternProperties")
      or is_short
    )
    if not patterns and not is_open:
      return []
    keys = _STRINGS
    for fact in a.facts:
      if fact.keyword == "propertyNames":
        keys = _both(keys, self._names(fact))
    if names:
      keys = subtract(keys, literal(map(ord, name) for name in names))
    wide = {p: self._pattern(p, is_wide=True) for p in patterns}
    found = []
    for pattern in [*patterns, None] if is_open else patterns:
      own_keys, items = keys, []
      if pattern is not None:
        own_keys = intersect(keys, self._pattern(pattern))
      for other in patterns:
        if other != pattern:
          own_keys = subtract(own_keys, wide[other])
      for fact in a.facts:
        if fact.keyword == "patternProperties" and pattern in fact.value:
          items.append(self.schemas.within(fact.owner, fact.value[pattern]))
        if fact.keyword == "additionalProperties" and pattern not in (
          fact.owner.schema.get("patternProperties", {})
        ):
          items.append(self.schemas.within(fact.owner, fact.value))
      value = self.value(tuple(items) or self._anything(a))
      key = json_text.string_dfa(own_keys)
      if not value.is_empty and not key.is_empty:
        found.append((key, value))
    return found

  def _names(self, fact: Fact) -> Dfa:
    """Returns names that fit, over code points."""
    item = self.schemas.within(fact.owner, fact.value)
    found = []
    for a in self.schemas.alternatives([item, self.schemas.made(_STRING)]):
      if a.values is not None:
        found.append(literal(
          map(ord, v) for v in self._fitting(a, [item]) if isinstance(v, str)
        ))  # fmt: skip
      elif "string" in a.types:
        found.append(self._string(a))
    return union_of(found)


def union_of(parts: Sequence[Dfa]) -> Dfa:
  """Returns the union; of nothing, nothing."""
  return union(parts) if any(not p.is_empty for p in parts) else _NOTHING


def _both(left: Dfa, right: Dfa) -> Dfa:
  return right if left is _STRINGS else intersect(left, right)


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


def _listed(
  opening: str,
  closing: str,
  start: Any,
  following: Callable[[Any], Sequence[tuple[Any, Any]]],
  is_final: Callable[[Any], bool],
  is_first: Callable[[Any], bool],
) -> Dfa:
  """Returns texts of arrays or objects.

  Args:
    opening: a bracket.
    closing: a bracket.
    start: the state before anything.
    following: states that may follow, each with the text on the way: a value,
      or a key and a value.
    is_final: whether the list may be closed.
    is_first: whether nothing has been written.
  """
  nfa = Nfa()
  begin = nfa.node()
  nodes = {start: json_text.write(nfa, begin, f"{opening} ")}
  entries: dict[Any, int] = {}
  closed, end = nfa.node(), nfa.node()
  nfa.link(json_text.write(nfa, closed, closing), end)
  queue = [start]
  for state in queue:
    after = nodes[state]
    if is_final(state):
      if is_first(state):
        nfa.link(after, closed)
      else:
        nfa.link(json_text.write(nfa, after, " "), closed)
    written: int | None = None
    for to, text in following(state):
      pieces = text if isinstance(text, tuple) else (text,)
      if any(piece.is_empty for piece in pieces):
        continue
      key = (to, tuple(map(id, pieces)))
      if to not in nodes:
        nodes[to] = nfa.node()
        queue.append(to)
      if key not in entries:
        entries[key] = nfa.node()
        at = nfa.embed(entries[key], pieces[0])
        if len(pieces) > 1:
          at = nfa.embed(json_text.write(nfa, at, " : "), pieces[1])
        nfa.link(at, nodes[to])
      if is_first(state):
        nfa.link(after, entries[key])
        continue
      if written is None:
        written = json_text.write(nfa, after, " , ")
      nfa.link(written, entries[key])
  return nfa.determinise(begin, end)
