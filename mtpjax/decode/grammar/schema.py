"""JSON schemas as automata over the bytes of the texts that fit them."""

from typing import Any

from mtpjax.decode.grammar import json_text
from mtpjax.decode.grammar.alternatives import Schemas
from mtpjax.decode.grammar.arrays import array_of
from mtpjax.decode.grammar.context import ANYTHING, Context
from mtpjax.decode.grammar.document import Document
from mtpjax.decode.grammar.facts import Alternative, Item, type_of
from mtpjax.decode.grammar.machine import MAX_STATES, Dfa, TooLarge, union
from mtpjax.decode.grammar.objects import object_of
from mtpjax.decode.grammar.scalars import number_of, string_of

_FREE: dict[Any, Dfa] = {}  # any value, by how deep it stands


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
  document = Document(schema, name)
  builder = _Builder(document)
  try:
    found = builder.value((Item(schema),))
  except TooLarge as error:
    raise document.refuse(
      f"it has more than {MAX_STATES} states; repeat less, or bound the "
      "repetitions (maxLength, maxItems) lower",
      *error.args,
    ) from error
  if found.is_empty:
    dropped = [d for d in builder.schemas.dropped if d[0] != "$ref"]
    if dropped:
      names = sorted({keyword for keyword, _ in dropped})
      raise document.refuse(
        f"{', '.join(names)} would not be heeded within not, or in oneOf "
        "whose alternatives overlap; use anyOf, or leave it out",
        dropped[0][1],
      )
    reason, place = (builder.reasons or [("", None)])[-1]
    raise document.refuse(
      f"admits nothing{f' ({reason})' if reason else ''}; mend it", place
    )
  return found


class _Builder:
  def __init__(self, document: Document):
    self.schemas = Schemas(document)
    self._context = Context(self.schemas, self.value)
    self.reasons = self._context.reasons
    self._values: dict[Any, Dfa] = {}

  def value(self, items: tuple[Item, ...]) -> Dfa:
    """Returns texts of values that fit all items."""
    values: dict[Any, Dfa] = self._values
    key: Any = frozenset(item.key for item in items)
    if all(item.schema is True for item in items):
      # Whatever the document is.
      values, key = _FREE, max(item.trail.count(ANYTHING) for item in items)
    if key not in values:
      try:
        found = self.schemas.alternatives(items)
        values[key] = union([self._alternative(a, items) for a in found])
      except TooLarge as error:
        error.args = error.args or (items[0].schema,)
        raise
      if not found:
        self._context.nothing(
          "what it asks for contradicts itself, or never ends", items[0]
        )
    return values[key]

  def _alternative(self, a: Alternative, items: tuple[Item, ...]) -> Dfa:
    context = self._context
    if a.values is not None:
      return json_text.value_dfa(context.fitting(a, items))
    parts = [
      json_text.value_dfa(context.kept(a, kind)) for kind in ("null", "boolean")
    ]
    if {"integer", "fraction"} & a.types:
      parts.append(number_of(context, a))
    if "string" in a.types:
      parts.append(json_text.string_dfa(string_of(context, a)))
    never = [type_of(v) for v in a.never]
    if "array" in a.types and "array" not in never:
      parts.append(array_of(context, a))
    if "object" in a.types and "object" not in never:
      parts.append(object_of(context, a))
    return union(parts)
