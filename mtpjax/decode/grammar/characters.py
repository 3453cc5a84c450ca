"""Sets of characters, as ascending and disjoint intervals of code points."""

import functools
import sys
import unicodedata
from collections.abc import Iterable

from mtpjax.decode.grammar.machine import Interval

Characters = tuple[Interval, ...]

# Text holds no surrogates.
ANY: Characters = ((0, 0xD7FF), (0xE000, sys.maxunicode))


def united(parts: Iterable[Interval]) -> Characters:
  """Returns all characters of these intervals."""
  found: list[Interval] = []
  for low, high in sorted(parts):
    if found and low <= found[-1][1] + 1:
      found[-1] = (found[-1][0], max(found[-1][1], high))
    else:
      found.append((low, high))
  return common(tuple(found), ANY)


def common(left: Characters, right: Characters) -> Characters:
  """Returns the characters of both."""
  return tuple(
    (max(a, c), min(b, d))
    for a, b in left
    for c, d in right
    if max(a, c) <= min(b, d)
  )


def others(characters: Characters) -> Characters:
  """Returns all characters but these."""
  found, start = [], 0
  for low, high in characters:
    found.append((start, low - 1))
    start = high + 1
  found.append((start, sys.maxunicode))
  return united((low, high) for low, high in found if low <= high)


@functools.cache
def of_category(name: str) -> Characters:
  """Returns the characters of a general category, such as "L" or "Lu".

  Args:
    name: what the names of the categories begin with; "word" and "digit" are
      what Python's \\w and \\d match.
  """
  tests = {
    "word": lambda c: c.isalnum() or c == "_",
    "digit": str.isdecimal,
  }
  has = tests.get(name, lambda c: unicodedata.category(c).startswith(name))
  found: list[Interval] = []
  for code in range(sys.maxunicode + 1):
    if has(chr(code)):
      if found and found[-1][1] == code - 1:
        found[-1] = (found[-1][0], code)
      else:
        found.append((code, code))
  return united(found)
