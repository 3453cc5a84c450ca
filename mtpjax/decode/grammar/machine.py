"""Finite automata over intervals of integers: code points, or bytes.

Nfa       node 0 -[97, 122]-> 1, 1 -> 0 without a symbol
Dfa       the same language, one way for each text
"""

import dataclasses
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

MAX_STATES = 40_000
MAX_CODE = 0x10FFFF
Interval = tuple[int, int]  # both ends included
S = TypeVar("S", bound=Hashable)


class TooLarge(Exception):
  """An automaton of too many states; of which schema, if that is known."""


@dataclasses.dataclass(frozen=True, eq=False)
class Dfa:
  """A deterministic automaton; from every state the end is in reach.

  Attributes:
    edges: of each state (low, high, next state), ascending and disjoint; state
      0 is the start. None at all: no text.
    finals: states in which a text may end.
  """

  edges: Sequence[Sequence[tuple[int, int, int]]]
  finals: frozenset[int]

  @property
  def is_empty(self) -> bool:
    """Whether no text is in the language."""
    return not self.finals

  def step(self, state: int, symbol: int) -> int | None:
    """Returns the next state, None if there is none."""
    for low, high, to in self.edges[state]:
      if low <= symbol <= high:
        return to
    return None

  def accepts(self, symbols: Iterable[int]) -> bool:
    """Returns whether a text is in the language."""
    state: int | None = None if self.is_empty else 0
    for symbol in symbols:
      if state is None:
        return False
      state = self.step(state, symbol)
    return state is not None and state in self.finals


NO_TEXT = Dfa((), frozenset())


class Nfa:
  """An automaton that grows; nodes are numbers, made by `node`."""

  def __init__(self) -> None:
    self._edges: list[list[tuple[int, int, int]]] = []
    self._links: list[list[int]] = []

  def node(self) -> int:
    """Returns a new node."""
    if len(self._edges) > 8 * MAX_STATES:
      raise TooLarge
    self._edges.append([])
    self._links.append([])
    return len(self._edges) - 1

  def link(self, start: int, end: int) -> None:
    """Leads from a node to another without a symbol."""
    self._links[start].append(end)

  def edge(self, start: int, low: int, high: int, end: int) -> None:
    """Leads from a node to another by any symbol of an interval."""
    self._edges[start].append((low, high, end))

  def write(self, start: int, text: Iterable[int]) -> int:
    """Leads from a node through a text; returns the node after it."""
    for symbol in text:
      end = self.node()
      self.edge(start, symbol, symbol, end)
      start = end
    return start

  def embed(self, start: int, dfa: Dfa) -> int:
    """Leads from a node through a language; returns the node after it."""
    end = self.node()
    nodes = [self.node() for _ in dfa.edges]
    for node, edges in zip(nodes, dfa.edges, strict=True):
      self._edges[node] = [(low, high, nodes[to]) for low, high, to in edges]
    if nodes:
      self.link(start, nodes[0])
    for state in dfa.finals:
      self.link(nodes[state], end)
    return end

  def determinise(self, start: int, end: int) -> Dfa:
    """Returns the texts that lead from one node to another.

    Raises:
      TooLarge: more than MAX_STATES states, or too much work.
    """
    closures: dict[int, frozenset[int]] = {}
    n_read = 0

    def closure(node: int) -> frozenset[int]:
      if node not in closures:
        seen, queue = {node}, [node]
        for at in queue:
          new = [n for n in self._links[at] if n not in seen]
          seen.update(new)
          queue.extend(new)
        # Others are only on the way.
        closures[node] = frozenset(
          n for n in seen if self._edges[n] or n == end
        )
      return closures[node]

    def follow(nodes: frozenset[int]) -> list[tuple[int, int, frozenset[int]]]:
      nonlocal n_read
      n_read += len(nodes)
      # Where states stand for many nodes each, time and memory go as squares.
      if n_read > 25 * MAX_STATES:
        raise TooLarge
      edges = [edge for node in nodes for edge in self._edges[node]]
      return [
        (low, high, frozenset().union(*map(closure, targets)))
        for low, high, targets in _parted(edges)
      ]

    return _explore(closure(start), follow, lambda nodes: end in nodes)


def _parted(
  edges: Sequence[tuple[int, int, int]],
) -> Iterable[tuple[int, int, frozenset[int]]]:
  """Cuts overlapping edges into disjoint intervals with all their targets."""
  if len(edges) == 1:
    [(low, high, to)] = edges
    yield low, high, frozenset([to])
    return
  events = [(low, 1, to) for low, _, to in edges]
  events += [(high + 1, -1, to) for _, high, to in edges]
  active: Counter[int] = Counter()
  before = 0
  for at, change, to in sorted(events):
    if at > before and active:
      yield before, at - 1, frozenset(active)
    before = at
    active[to] += change
    if not active[to]:
      del active[to]


def _explore(
  start: S,
  follow: Callable[[S], Iterable[tuple[int, int, S]]],
  is_final: Callable[[S], bool],
) -> Dfa:
  """Returns the automaton of all that is within reach, without dead ends."""
  numbers, queue = {start: 0}, deque([start])
  edges: list[list[tuple[int, int, int]]] = []
  finals: list[int] = []
  while queue:
    state = queue.popleft()
    if is_final(state):
      finals.append(numbers[state])
    own: list[tuple[int, int, int]] = []
    for low, high, to in follow(state):
      if to not in numbers:
        if len(numbers) >= MAX_STATES:
          raise TooLarge
        numbers[to] = len(numbers)
        queue.append(to)
      if own and own[-1][1:] == (low - 1, numbers[to]):
        low = own.pop()[0]
      own.append((low, high, numbers[to]))
    edges.append(own)
  return trimmed(edges, finals)


def trimmed(
  edges: Sequence[Sequence[tuple[int, int, int]]], finals: Iterable[int]
) -> Dfa:
  """Returns the automaton of these states, without those of no way on."""
  before: list[list[int]] = [[] for _ in edges]
  for state, own in enumerate(edges):
    for _, _, to in own:
      before[to].append(state)
  queue = list(finals)
  kept = set(queue)
  for state in queue:
    new = {s for s in before[state] if s not in kept}
    kept |= new
    queue.extend(new)
  if 0 not in kept:
    return NO_TEXT
  numbers = {state: n for n, state in enumerate(sorted(kept))}
  return Dfa(
    [
      [(low, high, numbers[to]) for low, high, to in edges[s] if to in kept]
      for s in sorted(kept)
    ],
    frozenset(numbers[s] for s in finals),
  )


def simulate(
  start: S,
  step: Callable[[S, int], S | None],
  symbols: Sequence[int],
  is_final: Callable[[S], bool],
) -> Dfa:
  """Returns the automaton that a function describes, symbol by symbol."""

  def follow(state: S) -> Iterable[tuple[int, int, S]]:
    for symbol in symbols:
      to = step(state, symbol)
      if to is not None:
        yield symbol, symbol, to

  return _explore(start, follow, is_final)


def combine(left: Dfa, right: Dfa, accept: Callable[[bool, bool], bool]) -> Dfa:
  """Returns the texts for which `accept(is in left, is in right)`.

  Args:
    left: a language.
    right: another.
    accept: False for a text in neither.
  """

  def follow(
    pair: tuple[int, int],
  ) -> Iterable[tuple[int, int, tuple[int, int]]]:
    edges = []
    for side, dfa in enumerate((left, right)):
      if pair[side] >= 0:
        edges += [
          (low, high, 2 * to + side) for low, high, to in dfa.edges[pair[side]]
        ]
    for low, high, targets in _parted(edges) if edges else ():
      to = [-1, -1]
      for target in targets:
        to[target % 2] = target // 2
      # What is lost to the left is in no intersection and no difference.
      if to[0] >= 0 or accept(False, True):
        yield low, high, (to[0], to[1])

  start = (-1 if left.is_empty else 0, -1 if right.is_empty else 0)
  return _explore(
    start, follow, lambda p: accept(p[0] in left.finals, p[1] in right.finals)
  )


def intersect(left: Dfa, right: Dfa) -> Dfa:
  """Returns the texts in both."""
  return combine(left, right, lambda a, b: a and b)


def subtract(left: Dfa, right: Dfa) -> Dfa:
  """Returns the texts of the left that are not in the right."""
  return combine(left, right, lambda a, b: a and not b)


def union(parts: Sequence[Dfa]) -> Dfa:
  """Returns the texts in any of them; in none, no text."""
  parts = [part for part in parts if not part.is_empty]
  if len(parts) == 1:
    return parts[0]
  nfa = Nfa()
  start, end = nfa.node(), nfa.node()
  for part in parts:
    nfa.link(nfa.embed(start, part), end)
  return nfa.determinise(start, end)


def literal(texts: Iterable[Iterable[int]]) -> Dfa:
  """Returns exactly these texts."""
  nfa = Nfa()
  start, end = nfa.node(), nfa.node()
  for text in texts:
    nfa.link(nfa.write(start, text), end)
  return nfa.determinise(start, end)
