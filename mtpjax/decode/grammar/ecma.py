r"""The regular expressions of JSON schemas: ECMA-262, found anywhere in a text.

Validators differ: \w is a letter of any script to some, and ASCII to ECMA-262.
Read narrowly, a class has the characters that it has by ECMA-262 and by
Python; read widely, those that it has by either.
"""

import functools
import re
from collections.abc import Callable

from mtpjax.decode.grammar.characters import (
  ANY,
  Characters,
  of_category,
  others,
  united,
)
from mtpjax.decode.grammar.machine import Dfa, Nfa, trimmed

_BEGIN, _END = 0x110000, 0x110001  # stand before and after a text
_MOST = 1000  # repetitions
_QUANTIFIER = re.compile(r"[*+?]|\{([0-9]+)(,([0-9]*))?\}")
_DIGIT = united([(48, 57)])
_WORD = united([(48, 57), (65, 90), (95, 95), (97, 122)])
_BOTH_SPACES = united(
  [(9, 13), (32, 32), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A),
   (0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000)]
)  # fmt: skip
_ANY_SPACES = united([*_BOTH_SPACES, (0x1C, 0x1F), (0x85, 0x85),
                      (0xFEFF, 0xFEFF)])  # fmt: skip
_NARROW_DOT = others(united([(10, 10), (13, 13), (0x2028, 0x2029)]))
_WIDE_DOT = others(((10, 10),))
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13}

# (narrow, wide)
_Class = tuple[Characters, Characters]
# Leads an automaton from a node through what it stands for.
_Part = Callable[[Nfa, int], int]


@functools.lru_cache(256)
def pattern_dfa(pattern: str, is_wide: bool = False) -> Dfa:
  """Returns the texts in which a pattern is found.

  Args:
    pattern: in the syntax of ECMA-262.
    is_wide: whether to return every text that some validator takes, not only
      those that all of them do.

  Returns:
    The automaton, over code points.

  Raises:
    ValueError: not such a pattern, or one with look-around, back-references
      or word bounds.
    TooLarge: it has too many states.
  """
  nfa = Nfa()
  start = nfa.node()
  for low, high in (*ANY, (_BEGIN, _BEGIN)):
    nfa.edge(start, low, high, start)
  end = nfa.node()
  nfa.link(_Parser(pattern, is_wide).parse()(nfa, start), end)
  for low, high in (*ANY, (_END, _END)):
    nfa.edge(end, low, high, end)
  marked = nfa.determinise(start, end)
  first = None if marked.is_empty else marked.step(0, _BEGIN)
  if first is None:
    return Dfa((), frozenset())
  # The state after _BEGIN comes first; the marks themselves go.
  edges = [[e for e in own if e[0] <= ANY[-1][1]] for own in marked.edges]
  edges = [edges[first], *edges]
  edges = [[(a, b, to + 1) for a, b, to in own] for own in edges]
  finals = []
  for state in range(len(marked.edges)):
    to = marked.step(state, _END)
    if to is not None and to in marked.finals:
      finals += [state + 1] if state != first else [0, state + 1]
  return trimmed(edges, finals)


class _Parser:
  def __init__(self, pattern: str, is_wide: bool):
    self._text = pattern
    self._is_wide = is_wide
    self._at = 0

  def parse(self) -> _Part:
    part = self._choice()
    if self._at < len(self._text):
      raise ValueError("unbalanced parenthesis")
    return part

  def _peek(self, text: str) -> bool:
    return self._text.startswith(text, self._at)

  def _take(self, text: str) -> bool:
    if self._peek(text):
      self._at += len(text)
      return True
    return False

  def _next(self) -> str:
    if self._at >= len(self._text):
      raise ValueError("it ends too early")
    self._at += 1
    return self._text[self._at - 1]

  def _match(self, expression: str) -> re.Match[str] | None:
    found = re.compile(expression).match(self._text, self._at)
    if found:
      self._at = found.end()
    return found

  def _choice(self) -> _Part:
    parts = [self._sequence()]
    while self._take("|"):
      parts.append(self._sequence())

    def lead(nfa: Nfa, start: int) -> int:
      end = nfa.node()
      for part in parts:
        nfa.link(part(nfa, start), end)
      return end

    return lead if len(parts) > 1 else parts[0]

  def _sequence(self) -> _Part:
    parts: list[_Part] = []
    while self._at < len(self._text) and self._text[self._at] not in "|)":
      parts.append(self._repeated())

    def lead(nfa: Nfa, start: int) -> int:
      for part in parts:
        start = part(nfa, start)
      return start

    return lead

  def _repeated(self) -> _Part:
    if self._peek("^") or self._peek("$"):
      mark = {"^": _BEGIN, "$": _END}[self._text[self._at]]
      # ^^ is ^.
      while self._at < len(self._text) and (
        self._text[self._at] == {_BEGIN: "^", _END: "$"}[mark]
      ):
        self._at += 1
      if _QUANTIFIER.match(self._text, self._at):
        raise ValueError("nothing to repeat")
      return lambda nfa, start: nfa.write(start, [mark])
    part = self._atom()
    found = _QUANTIFIER.match(self._text, self._at)
    if not found:
      if re.compile(r"\{,[0-9]+\}").match(self._text, self._at):
        raise ValueError("write {0,n} for {,n}")
      return part
    self._at = found.end()
    self._take("?")  # lazy: the same texts
    if _QUANTIFIER.match(self._text, self._at):
      raise ValueError("multiple repeat")
    if found[1]:
      least = int(found[1])
      most = int(found[3] or -1) if found[2] else least
      if 0 <= most < least:
        raise ValueError("min repeat greater than max repeat")
      if max(least, most) > _MOST:
        raise ValueError(f"more than {_MOST} repetitions")
    else:
      least, most = {"*": (0, -1), "+": (1, -1), "?": (0, 1)}[found[0]]
    return _repetition(part, least, most)

  def _atom(self) -> _Part:
    character = self._next()
    if character == "(":
      if self._take("?"):
        if not self._take(":") and not self._match(r"<[A-Za-z_$][\w$]*>"):
          raise ValueError("look-around and flags in a group")
      part = self._choice()
      if not self._take(")"):
        raise ValueError("missing ), unterminated subpattern")
      return part
    if character in "*+?":
      raise ValueError("nothing to repeat")
    if character == ".":
      return self._of(_NARROW_DOT, _WIDE_DOT)
    if character == "[":
      return self._of(*self._set())
    if character == "\\":
      if self._match("[bB]"):
        raise ValueError(r"\b, a word bound")
      if self._match("[1-9]|k<"):
        raise ValueError("a back-reference")
      return self._of(*self._escape())
    if character == "{":
      self._at -= 1
      if _QUANTIFIER.match(self._text, self._at):
        raise ValueError("nothing to repeat")
      self._at += 1
    return self._of(*_one(ord(character)))

  def _of(self, narrow: Characters, wide: Characters) -> _Part:
    intervals = wide if self._is_wide else narrow

    def lead(nfa: Nfa, start: int) -> int:
      end = nfa.node()
      for low, high in intervals:
        nfa.edge(start, low, high, end)
      return end

    return lead

  def _set(self) -> _Class:
    is_negated = self._take("^")
    if self._peek("]"):
      raise ValueError("an empty set of characters; escape ] within []")
    narrow: list[tuple[int, int]] = []
    wide: list[tuple[int, int]] = []
    while not self._take("]"):
      first = self._member()
      is_range = self._peek("-") and not self._peek("-]")
      if is_range:
        self._at += 1
        last = self._member()
        low, high = _code(first), _code(last)
        if low is None or high is None:
          if low is not None or self._text[self._at - 1] == "]":
            raise ValueError("a range that ends in a class")
          first = (  # the hyphen is itself
            united([*first[0], *last[0], (45, 45)]),
            united([*first[1], *last[1], (45, 45)]),
          )
        elif low > high:
          raise ValueError("bad character range")
        else:
          first = (((low, high),), ((low, high),))
      narrow += first[0]
      wide += first[1]
    if is_negated:
      return others(united(wide)), others(united(narrow))
    return united(narrow), united(wide)

  def _member(self) -> _Class:
    character = self._next()
    if character != "\\":
      return _one(ord(character))
    if self._take("b"):
      return _one(8)
    return self._escape()

  def _escape(self) -> _Class:
    character = self._next()
    classes = {
      "d": (_DIGIT, of_category("digit") if character in "dD" else ()),
      "w": (_WORD, of_category("word") if character in "wW" else ()),
      "s": (_BOTH_SPACES, _ANY_SPACES),
    }
    if character.lower() in classes:
      narrow, wide = classes[character.lower()]
      if character.isupper():
        return others(wide), others(narrow)
      return narrow, wide
    if character in "pP":
      found = self._match(r"\{(?:gc=)?([A-Z][a-z]?)\}")
      if not found or not of_category(found[1]):
        raise ValueError(r"\p with other than a category, such as \p{L}")
      characters = of_category(found[1])
      if character == "P":
        characters = others(characters)
      return characters, characters
    if character in _CONTROLS:
      return _one(_CONTROLS[character])
    if character == "0" and not self._match("[0-9]"):
      return _one(0)
    if character == "c" and (found := self._match("[A-Za-z]")):
      return _one(ord(found[0]) % 32)
    if character == "x" and (found := self._match("[0-9A-Fa-f]{2}")):
      return _one(int(found[0], 16))
    if character == "u":
      return _one(self._unicode())
    if character.isalnum():
      raise ValueError(f"bad escape \\{character}")
    return _one(ord(character))

  def _unicode(self) -> int:
    pair = self._match(
      r"([Dd][89ABab][0-9A-Fa-f]{2})\\u([Dd][C-Fc-f][0-9A-Fa-f]{2})"
    )
    if pair:
      high, low = int(pair[1], 16), int(pair[2], 16)
      return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00)
    found = self._match(r"([0-9A-Fa-f]{4})|\{([0-9A-Fa-f]{1,6})\}")
    if not found:
      raise ValueError(r"bad escape \u")
    code = int(found[1] or found[2], 16)
    if code > ANY[-1][1] or ANY[0][1] < code < ANY[1][0]:
      raise ValueError(f"{found[0]} is no character")
    return code


def _one(code: int) -> _Class:
  return ((code, code),), ((code, code),)


def _code(member: _Class) -> int | None:
  """Returns the code point of a single character, None of a class."""
  [(low, high), *rest] = member[0]
  return low if low == high and not rest else None


def _repetition(part: _Part, least: int, most: int) -> _Part:
  """Repeats; most of -1 is without end."""

  def lead(nfa: Nfa, start: int) -> int:
    for _ in range(least):
      start = part(nfa, start)
    end = nfa.node()
    if most < 0:
      again = nfa.node()
      nfa.link(start, again)
      nfa.link(part(nfa, again), again)
      nfa.link(again, end)
      return end
    for _ in range(most - least):
      nfa.link(start, end)
      start = part(nfa, start)
    nfa.link(start, end)
    return end

  return lead
