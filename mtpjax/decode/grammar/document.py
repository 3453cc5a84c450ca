"""A JSON schema as a document: places in it, and what refers to them."""

import urllib.parse
from collections.abc import Mapping
from typing import Any

from mtpjax.decode.grammar.grammar import shown
from mtpjax.errors import UserError


class Document:
  """All schemas of a document, those made of them included.

  Attributes:
    root: the whole, as JSON gives it.
  """

  def __init__(self, root: Any, name: str):
    self.root = root
    self._name = name
    self._targets: dict[str, Any] = {}
    # By identity: (itself, so that it keeps it; what it was made of).
    self._made: dict[int, tuple[Any, Any]] = {}

  def refuse(self, problem: str, schema: Any = None) -> UserError:
    """Returns the error that names the document, and a place in it."""
    place = self.place_of(schema)
    where = f"{shown(place)}: " if place else ""
    return UserError(f"grammar: JSON schema {self._name}: {where}{problem}")

  def keep(self, schema: Any, origin: Any) -> None:
    """Keeps a schema that stands nowhere, but was made of another."""
    self._made[id(schema)] = schema, origin

  def place_of(self, schema: Any) -> str:
    """Returns the pointer to a schema; "" of the root, and of none."""
    while id(schema) in self._made:
      _, schema = self._made[id(schema)]
    queue: list[tuple[str, Any]] = [("", self.root)]
    for place, found in queue:
      if found is schema and isinstance(schema, Mapping):
        return place and "#" + place
      parts = enumerate(found) if isinstance(found, list) else (
        found.items() if isinstance(found, Mapping) else ()
      )  # fmt: skip
      for key, part in parts:
        escaped = str(key).replace("~", "~0").replace("/", "~1")
        queue.append((f"{place}/{escaped}", part))
    return ""

  def find(self, reference: str, owner: Any) -> Any:
    """Returns the schema that a reference leads to.

    Args:
      reference: "#", or a pointer.
      owner: the schema it stands in.

    Raises:
      UserError: another kind of reference, or nothing is there.
    """
    if reference not in self._targets:
      self._targets[reference] = self._find(reference, owner)
    return self._targets[reference]

  def _find(self, reference: str, owner: Any) -> Any:
    if reference != "#" and not reference.startswith("#/"):
      raise self.refuse(
        f"$ref {shown(reference)} is not within the schema; only #, and "
        'pointers such as "#/$defs/name", are followed',
        owner,
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
        raise self.refuse(
          f"$ref {shown(reference)} is nowhere in it; correct it", owner
        )
    if not isinstance(found, Mapping | bool):
      raise self.refuse(
        f"$ref {shown(reference)} does not lead to a schema; correct it", owner
      )
    return found
