"""Regular expressions as automata over bytes, made by outlines-core."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from mtpjax.decode.grammar.repetitions import written_out
from mtpjax.errors import UserError

# Stands after every pattern, and no match ends before it. Without it the
# automaton would prefer the first match that it finds: `a|ab` would end at a.
# A noncharacter, which no text should hold: a text may end, but not go on,
# after one.
_END = "\U0010ffff"
# Stands before it, with the empty text as the second choice of the whole, as
# in `START(?:a|ab)END|`. outlines-core also builds the automaton of a match
# that begins anywhere; a match at once, wherever that is, keeps it small (45 s
# become 0.1 s for any JSON value). Two bytes, because outlines-core drops a
# token after which it learns of a match that has ended.
_START = "\0\0"
_UNUSED = 258  # outlines-core wants the id of an EOS
_MAX_STATES = 100_000  # of the byte automaton: a table of 100 MB
# A few times as many may still become so few.
_MOST_WRITTEN = 4 * _MAX_STATES


def byte_automaton(
  pattern: str, name: str
) -> tuple[np.ndarray, np.ndarray, int]:
  """Returns the automaton of a pattern.

  Args:
    pattern: see `compile_regex`.
    name: of it, for messages.

  Returns:
    table [N, 256], is_final [N] and the start. The last state is dead; from
    every other one a final one can be reached.

  Raises:
    UserError: see `compile_regex`.
  """
  # What outlines-core would be long about, or need all memory for.
  n_written = written_out(pattern)
  if n_written > _MOST_WRITTEN:
    raise UserError(
      f"grammar: {name} has about {n_written} states when its repetitions are "
      f"written out, more than {_MAX_STATES} are supported; repeat less, or "
      "bound the repetitions lower"
    )
  # First without parentheses, in which `a)(b` would be a pattern. The empty
  # text as the first choice makes this cheap.
  _index(f"|{pattern}", {b"\0": [0]}, pattern, name)
  start, end = 256, 257
  tokens = {bytes([byte]): [byte] for byte in range(256)}
  tokens |= {_START.encode(): [start], _END.encode(): [end]}
  index = _index(f"{_START}(?:{pattern}){_END}|", tokens, pattern, name)
  transitions, ended = index.get_transitions(), index.get_final_states()
  if len(transitions) > _MAX_STATES:
    raise UserError(
      f"grammar: {name} has {len(transitions)} states, more than the "
      f"{_MAX_STATES} supported; repeat less, or bound the repetitions lower"
    )
  initial = transitions[index.get_initial_state()][start]
  # Sorted: the order of the dictionary differs from run to run.
  number = {s: n for n, s in enumerate(sorted({*transitions, *ended, initial}))}
  dead = len(number)
  table_NB = np.full((dead + 1, 256), dead, np.int32)
  is_final_N = np.zeros(dead + 1, bool)
  for state, row in transitions.items():
    for byte, to in row.items():
      if byte < 256:
        table_NB[number[state], byte] = number[to]
    is_final_N[number[state]] = row.get(end) in ended
  successors = {n: set(table_NB[n].tolist()) for n in range(dead)}
  is_dead_N = np.ones(dead + 1, bool)
  is_dead_N[list(reaching(successors, np.flatnonzero(is_final_N)))] = False
  # Also what only spells _END out, byte by byte.
  table_NB[is_dead_N[table_NB]] = dead
  return table_NB, is_final_N, number[initial]


def _outlines() -> Any:
  try:
    import outlines_core
  except ModuleNotFoundError as error:
    raise UserError(
      "grammar: outlines-core is not installed; install mtpjax[grammar]"
    ) from error
  return outlines_core


def _index(
  padded: str,
  tokens: Mapping[bytes, Sequence[int]],
  pattern: str,
  name: str,
) -> Any:
  """Returns outlines-core's automaton of the padded pattern."""
  outlines = _outlines()
  try:
    return outlines.Index(padded, outlines.Vocabulary(_UNUSED, dict(tokens)))
  except ValueError as error:
    reason = str(error).partition("\n")[0]
    if "incompatible" in reason:
      raise UserError(
        f"grammar: {name} admits no text, or a part of it never matches; the "
        "whole text is matched anyhow: leave ^ and $ out"
      ) from error
    if "start state" in reason:
      raise UserError(
        f"grammar: {name} begins with an anchor; the whole text is matched "
        "anyhow: leave ^ and $ out"
      ) from error
    try:  # Python often knows better what is wrong.
      re.compile(pattern)
    except re.error as better:
      reason = str(better)
    except RecursionError:
      reason = "nested too deep"
    raise UserError(
      f"grammar: {name} can't be used as a regular expression ({reason}); "
      "look-around, back-references and \\b never can"
    ) from error


def reaching(
  successors: Mapping[int, Iterable[int]], goals: Iterable[int]
) -> set[int]:
  """Returns the states from which a goal can be reached, goals included."""
  predecessors: dict[int, list[int]] = {}
  for state, following in successors.items():
    for to in following:
      predecessors.setdefault(to, []).append(state)
  queue = [int(goal) for goal in goals]
  found = set(queue)
  for state in queue:
    new = [s for s in predecessors.get(state, ()) if s not in found]
    found.update(new)
    queue.extend(new)
  return found
