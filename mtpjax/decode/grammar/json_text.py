"""How values are written in JSON: automata over bytes."""

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mtpjax.decode.grammar.characters import ANY
from mtpjax.decode.grammar.machine import Dfa, Interval, Nfa

_SHORT = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 34: '"', 92: "\\"}


def write(nfa: Nfa, start: int, text: str) -> int:
  """Leads an automaton from a node through a text; a space may be left out."""
  for byte in text.encode():
    end = nfa.node()
    nfa.edge(start, byte, byte, end)
    if byte == 32:
      nfa.link(start, end)
    start = end
  return start


def value_dfa(values: Iterable[Any]) -> Dfa:
  """Returns the texts of single values."""
  nfa = Nfa()
  start, end = nfa.node(), nfa.node()
  for value in values:
    nfa.link(_write_value(nfa, start, value), end)
  return nfa.determinise(start, end)


def _write_value(nfa: Nfa, start: int, value: Any) -> int:
  if isinstance(value, Mapping):
    start = write(nfa, start, "{ ")
    for n, (key, own) in enumerate(value.items()):
      start = write(nfa, start, " , ") if n else start
      start = write(nfa, nfa.write(start, _scalar(key)), " : ")
      start = _write_value(nfa, start, own)
    return write(nfa, start, " }" if value else "}")
  if isinstance(value, list):
    start = write(nfa, start, "[ ")
    for n, own in enumerate(value):
      start = write(nfa, start, " , ") if n else start
      start = _write_value(nfa, start, own)
    return write(nfa, start, " ]" if value else "]")
  return nfa.write(start, _scalar(value))


def _scalar(value: Any) -> bytes:
  text = json.dumps(value, ensure_ascii=False)
  if any(0xD800 <= ord(c) <= 0xDFFF for c in text):
    text = json.dumps(value)  # half a pair has no UTF-8
  return text.encode()


def key_dfa(name: str) -> Dfa:
  """Returns the text of a property's name."""
  return value_dfa([name])


def string_dfa(content: Dfa) -> Dfa:
  """Returns the texts, quotes included, of strings.

  Args:
    content: the strings, over code points. Quotes, backslashes and control
      characters are escaped, each in one way; nothing else is.
  """
  nfa = Nfa()
  start = nfa.node()
  first = nfa.write(start, b'"')
  end = nfa.node()
  if content.is_empty:
    return content
  nodes = [nfa.node() for _ in content.edges]
  nfa.link(first, nodes[0])
  # What is left to read before a state is shared by all that lead to it.
  shared: dict[tuple[int, tuple[Interval, ...]], int] = {}

  def lead(at: int, intervals: tuple[Interval, ...], to: int) -> None:
    (low, high), rest = intervals[0], intervals[1:]
    if not rest:
      nfa.edge(at, low, high, to)
      return
    if (to, rest) not in shared:
      shared[to, rest] = nfa.node()
      lead(shared[to, rest], rest, to)
    nfa.edge(at, low, high, shared[to, rest])

  for node, edges in zip(nodes, content.edges, strict=True):
    for low, high, to in edges:
      for sequence in _encoded(low, high):
        lead(node, sequence, nodes[to])
  for state in content.finals:
    nfa.edge(nodes[state], 34, 34, end)
  return nfa.determinise(start, end)


@functools.lru_cache(4096)
def _encoded(low: int, high: int) -> Sequence[tuple[Interval, ...]]:
  """Returns sequences of byte intervals: the characters, within a string."""
  found: list[tuple[Interval, ...]] = []
  for code in [*range(32), 34, 92]:
    if low <= code <= high:
      escape = "\\" + _SHORT.get(code, f"u{code:04x}")
      found.append(tuple((byte, byte) for byte in escape.encode()))
  for first, last in ((32, 33), (35, 91), (93, ANY[0][1]), ANY[1]):
    found += _utf8(max(low, first), min(high, last))
  return found


def _utf8(low: int, high: int) -> Iterable[tuple[Interval, ...]]:
  # Within each of these all characters have as many bytes.
  for first, last in (
    (0, 0x7F), (0x80, 0x7FF), (0x800, 0xFFFF), (0x10000, 0x10FFFF),
  ):  # fmt: skip
    start, end = max(low, first), min(high, last)
    if start <= end:
      yield from _cut(chr(start).encode(), chr(end).encode())


def _cut(low: bytes, high: bytes) -> Iterable[tuple[Interval, ...]]:
  """Cuts the texts from low to high, of one length, into products."""
  first, last = low[0], high[0]
  n = len(low) - 1
  if n and first == last:
    for rest in _cut(low[1:], high[1:]):
      yield (first, first), *rest
    return
  if n and low[1:] != b"\x80" * n:
    for rest in _cut(low[1:], b"\xbf" * n):
      yield (first, first), *rest
    first += 1
  if n and high[1:] != b"\xbf" * n:
    for rest in _cut(b"\x80" * n, high[1:]):
      yield (last, last), *rest
    last -= 1
  if first <= last:
    yield (first, last), *[(0x80, 0xBF)] * n
