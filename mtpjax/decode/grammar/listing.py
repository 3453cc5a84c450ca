"""Lists of values, as arrays and objects write them."""

from collections.abc import Callable, Sequence
from typing import Any

from mtpjax.decode.grammar import json_text
from mtpjax.decode.grammar.machine import Dfa, Nfa


def listed(
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
