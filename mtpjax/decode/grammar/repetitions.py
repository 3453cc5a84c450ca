r"""How large a regular expression becomes when its repetitions are written out.

(a{1000}){1000}   1,000,000
\w{20}            about 6,000: a letter of any script takes many states
"""

import re

_QUANTIFIER = re.compile(r"\{ *([0-9]+) *(?:, *([0-9]*) *)?\}")
_ESCAPE = re.compile(r"\\(?:[pP](?:\{[^}]*\}|.)|[xuU]\{[^}]*\}|.)", re.DOTALL)
# States that the bytes of one character of these take, about; of others one.
_WEIGHTS = {"w": 300, "W": 300, "p": 300, "P": 300, "d": 25, "D": 25}
_ANY = 10  # any character but some


def written_out(pattern: str) -> int:
  """Returns about how many states of bytes a pattern has at the least.

  It is no parser: of what is no pattern, any number comes out.

  Args:
    pattern: in the syntax of Rust's `regex`.
  """
  # Of each open group what has been read, and its latest part.
  open_groups = [(0, 0)]
  at = 0
  while at < len(pattern):
    total, latest = open_groups.pop()
    if found := _QUANTIFIER.match(pattern, at):
      latest *= max(map(int, (found[1], found[2] or "0")))
      at = found.end()
    elif pattern[at] == "(":
      open_groups += [(total + latest, 0)]
      total = latest = 0
      at += 1
    elif pattern[at] == ")" and open_groups:
      outer, _ = open_groups.pop()
      total, latest = outer, total + latest
      at += 1
    elif pattern[at] in "*+?|":
      at += 1
    else:
      total += latest
      at, latest = _after_character(pattern, at)
    open_groups.append((total, latest))
  return sum(map(sum, open_groups))


def _after_character(pattern: str, at: int) -> tuple[int, int]:
  """Returns where a character or a class ends, and the states it takes."""
  if found := _ESCAPE.match(pattern, at):
    return found.end(), _WEIGHTS.get(pattern[at + 1], 1)
  if pattern[at] != "[":
    return at + 1, _ANY if pattern[at] == "." else 1
  weight, depth, begin = 1, 0, at
  while at < len(pattern):
    if found := _ESCAPE.match(pattern, at):
      weight = max(weight, _WEIGHTS.get(pattern[at + 1], 1))
      at = found.end()
      continue
    if pattern[at] == "[":
      depth += 1
    # The first of a class is itself.
    elif pattern[at] == "]" and pattern[begin:at] not in ("[", "[^"):
      depth -= 1
    elif pattern[at] == "^":
      weight = max(weight, _ANY)
    at += 1
    if not depth:
      break
  return at, weight
