"""Arrays that fit what schemas ask."""

import dataclasses

from mtpjax.decode.grammar import json_text
from mtpjax.decode.grammar.context import Context
from mtpjax.decode.grammar.facts import Alternative, Item
from mtpjax.decode.grammar.listing import listed
from mtpjax.decode.grammar.machine import MAX_STATES, Dfa, TooLarge

_FEW = 7  # values whose subsets are distinguished


def array_of(context: Context, a: Alternative) -> Dfa:
  """Returns texts of arrays that fit an alternative."""
  least, most = a.least("minItems"), a.most("maxItems")
  prefix = max((len(v) for v in a.all("prefixItems")), default=0)
  contains = a.of("contains")
  if prefix and not (a.all("items") or contains):
    # Further items are allowed, but nobody asked for any.
    most = min(most, max(prefix, least))
  if least > most:
    return context.nothing(
      f"minItems {least} is above maxItems {most:.0f}",
      a.of("minItems")[0].owner,
    )
  if max(least, most if most < float("inf") else 0) > MAX_STATES:
    raise TooLarge
  if any(a.all("uniqueItems")) and most > 1:
    return _unique(context, a, least, most, bool(prefix or contains))
  if len(contains) > 1:
    raise context.refuse(
      "several contains at once would not be heeded; leave all but one out",
      contains[0].owner,
    )
  hits, most_hits, other_most = 0, float("inf"), False
  if contains:
    owner = contains[0].owner.schema
    hits = int(owner.get("minContains", 1))
    most_hits = owner.get("maxContains", most_hits)
    other_most = most_hits < float("inf")
    if hits > most_hits:
      return context.nothing(
        f"minContains {hits} is above maxContains {most_hits:.0f}",
        contains[0].owner,
      )
  top = int(most) if most < float("inf") else max(prefix, least, 1)
  cap = int(most_hits) if other_most else hits

  def following(
    state: tuple[int, int],
  ) -> list[tuple[tuple[int, int], Dfa]]:
    n, n_hits = state
    if n >= most:
      return []
    items = _items(context, a, n)
    to = min(n + 1, top)
    if not contains:
      return [((to, 0), context.value(items))]
    fact = contains[0]
    hit = context.schemas.within(fact.owner, fact.value)
    found = []
    if n_hits < cap or not other_most:
      found.append(((to, min(n_hits + 1, cap)), context.value((*items, hit))))
    if other_most:
      items = (*items, dataclasses.replace(hit, fits=False))
    return [*found, ((to, n_hits), context.value(items))]

  return listed(
    "[", "]", (0, 0), following, lambda s: s[0] >= least and s[1] >= hits,
    lambda s: s[0] == 0,
  )  # fmt: skip


def _items(context: Context, a: Alternative, n: int) -> tuple[Item, ...]:
  """Returns what item n of an array must fit."""
  found: list[Item] = []
  for fact in a.facts:
    if fact.keyword == "prefixItems" and n < len(fact.value):
      found.append(context.schemas.within(fact.owner, fact.value[n]))
    if fact.keyword == "items" and n >= len(
      fact.owner.schema.get("prefixItems", ())
    ):
      found.append(context.schemas.within(fact.owner, fact.value))
  return tuple(found) or context.anything(a)


def _unique(
  context: Context,
  a: Alternative,
  least: int,
  most: float,
  is_mixed: bool,
) -> Dfa:
  values = None if is_mixed else context.listable(_items(context, a, 0))
  if values is None:
    raise context.refuse(
      "uniqueItems would not be heeded, except with items of an enum; leave "
      "it out",
      a.of("uniqueItems")[0].owner,
    )
  if least > len(values):
    return context.nothing(
      f"minItems {least} is above the {len(values)} values of unique items",
      a.owner,
    )
  parts = [json_text.value_dfa([value]) for value in values]
  if len(values) > _FEW:  # whose subsets are too many: they come in order
    top = int(min(max(least, 1), len(values))) if most >= len(values) else (
      int(most)
    )  # fmt: skip
    return listed(
      "[", "]", (0, 0),
      lambda s: [
        ((n + 1, min(s[1] + 1, top)), parts[n])
        for n in range(s[0], len(values))
        if s[1] < most
      ],
      lambda s: s[1] >= least, lambda s: s[0] == 0,
    )  # fmt: skip
  return listed(
    "[", "]", frozenset(),
    lambda used: [
      (used | {n}, parts[n])
      for n in range(len(values))
      if n not in used and len(used) < most
    ],
    lambda used: len(used) >= least, lambda used: not used,
  )  # fmt: skip
