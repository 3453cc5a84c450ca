"""Draft trees: which candidate of which offset stands after which other.

`parents` is the truth; depths, ancestors and paths are derived from it. The
root is the last committed token. A chain is a tree, and so is the root alone,
which is plain next-token decoding.

  rank paths (0,), (1,), (0, 0)        node     0  1  2  3
                                       parent   0  0  0  1
          0                            depth    0  1  1  2
         / \\                           rank     0  0  1  0
        1   2
        |
        3
"""

import dataclasses
import functools
import reprlib
from collections.abc import Iterable

import numpy as np

from mtpjax.errors import UserError

MAX_NODES = 4096  # root included; more is a slip of the pen, not a plan


@dataclasses.dataclass(frozen=True)
class Tree:
  """A fixed tree; hashable, so that a compiled program can depend on it.

  Attributes:
    parents: parent of each node; parents come before children; the root is
      node 0 and its own parent.
    ranks: which of its offset's candidates a node takes, 0 for the likeliest;
      0 for the root.
  """

  parents: tuple[int, ...]
  ranks: tuple[int, ...]

  def __post_init__(self):
    _require_few(len(self.parents))
    if len(self.parents) != len(self.ranks) or self.parents[:1] != (0,):
      raise UserError(
        f"tree: parents {reprlib.repr(self.parents)} do not begin at a root, "
        "or have not a rank each"
      )
    if min(self.ranks) < 0:
      raise UserError(f"tree: rank {min(self.ranks)} must be 0 or more")
    for node, parent in enumerate(self.parents[1:], start=1):
      if not 0 <= parent < node:
        raise UserError(
          f"tree: node {node} comes before its parent {parent}; list parents "
          "first"
        )
    seen = set()
    for child in list(zip(self.parents, self.ranks, strict=True))[1:]:
      if child in seen:
        raise UserError(
          f"tree: node {child[0]} has two children of rank {child[1]}; "
          "siblings must differ"
        )
      seen.add(child)

  @classmethod
  def root(cls) -> "Tree":
    """Returns the root alone: plain next-token decoding."""
    return cls((0,), (0,))

  @classmethod
  def chain(cls, length: int) -> "Tree":
    """Returns the root and `length` drafts, one after the other."""
    _require_few(length + 1)
    return cls((0, *range(length)), (0,) * (length + 1))

  @classmethod
  def from_rank_paths(cls, paths: Iterable[tuple[int, ...]]) -> "Tree":
    """Builds a tree from the ranks along the path to each node.

    Args:
      paths: as in Medusa's choices: (1, 0) is the likeliest candidate of
        depth 2 after the second of depth 1.

    Returns:
      The tree, nodes sorted by depth.

    Raises:
      UserError: a path occurs twice, the path to its parent is missing, or
        there are more than `MAX_NODES` nodes.
    """
    paths = list(paths)
    # So deep a path needs as many others.
    _require_few(1 + max(len(paths), *map(len, paths), 0))
    ordered = sorted(paths, key=lambda path: (len(path), path))
    nodes: dict[tuple[int, ...], int] = {(): 0}
    parents, ranks = [0], [0]
    for path in ordered:
      if path in nodes:
        raise UserError(f"tree: path {_shown(path)} occurs twice")
      if path[:-1] not in nodes:
        raise UserError(
          f"tree: path {_shown(path)} needs {_shown(path[:-1])} too"
        )
      nodes[path] = len(parents)
      parents.append(nodes[path[:-1]])
      ranks.append(path[-1])
    return cls(tuple(parents), tuple(ranks))

  @classmethod
  def from_branching(cls, branching: Iterable[int]) -> "Tree":
    """Builds the full tree of a branching per depth.

    Args:
      branching: children of every node of depth 0, 1, ...; (4, 2, 1) has 4,
        8 and 8 nodes below the root.

    Returns:
      The tree; siblings have the ranks 0, 1, ...

    Raises:
      UserError: a branching below 1, or more than `MAX_NODES` nodes.
    """
    paths: list[tuple[int, ...]] = []
    above: list[tuple[int, ...]] = [()]
    for children in branching:
      if children < 1:
        raise UserError(f"tree: branching {children} must be 1 or more")
      nodes = 1 + len(paths) + len(above) * children
      if nodes > MAX_NODES:
        raise UserError(
          f"tree: branching {children} at depth {len(above[0]) + 1} makes "
          f"{nodes} nodes; use at most {MAX_NODES}"
        )
      above = [(*path, rank) for path in above for rank in range(children)]
      paths += above
    return cls.from_rank_paths(paths)

  @functools.cached_property
  def depth_Q(self) -> np.ndarray:
    """Distance of each node from the root, int32."""
    depth = [0]
    for parent in self.parents[1:]:
      depth.append(depth[parent] + 1)
    return np.array(depth, np.int32)

  @property
  def rank_paths(self) -> tuple[tuple[int, ...], ...]:
    """The ranks along the path to each node but the root."""
    paths: list[tuple[int, ...]] = [()]
    for parent, rank in zip(self.parents[1:], self.ranks[1:], strict=True):
      paths.append((*paths[parent], rank))
    return tuple(paths[1:])

  def cut(self, depth: int) -> "Tree":
    """Returns the part that is at most `depth` drafts deep."""
    if depth < 0:
      raise UserError(f"tree: depth {depth} to cut at must be 0 or more")
    kept = [node for node in range(self.size) if self.depth_Q[node] <= depth]
    new = {node: index for index, node in enumerate(kept)}
    return Tree(
      tuple(new[self.parents[node]] for node in kept),
      tuple(self.ranks[node] for node in kept),
    )

  @property
  def size(self) -> int:
    """Nodes Q, root included."""
    return len(self.parents)

  @property
  def max_depth(self) -> int:
    """Drafts on the longest path."""
    return int(self.depth_Q.max())

  @property
  def width(self) -> int:
    """Candidates C each offset must propose."""
    return max(self.ranks) + 1

  @functools.cached_property
  def ancestors_QQ(self) -> np.ndarray:
    """[q, k] is True if k is q or an ancestor of q."""
    ancestors = np.eye(self.size, dtype=bool)
    for node, parent in enumerate(self.parents):
      ancestors[node] |= ancestors[parent]
    return ancestors

  @functools.cached_property
  def has_child_QC(self) -> np.ndarray:
    """Which of `children_QC` are children and not padding, bool."""
    n_children = np.bincount(self.parents, minlength=self.size)
    n_children[0] -= 1  # the root is its own parent
    return np.arange(np.max(n_children)) < n_children[:, None]

  @functools.cached_property
  def children_QC(self) -> np.ndarray:
    """Children of each node in rank order, padded with 0, int32.

    C is the widest branching.
    """
    children = np.zeros(self.has_child_QC.shape, np.int32)
    by_rank = sorted(range(1, self.size), key=lambda node: self.ranks[node])
    filled = [0] * self.size
    for node in by_rank:
      parent = self.parents[node]
      children[parent, filled[parent]] = node
      filled[parent] += 1
    return children

  @property
  def is_path(self) -> bool:
    """Whether it is a chain: each draft the likeliest after the one before."""
    return self == Tree.chain(self.size - 1)

  @functools.cached_property
  def paths_QJ(self) -> np.ndarray:
    """The path from the root to each node, J = max_depth + 1 nodes, int32.

    After its end a path repeats its last node.
    """
    paths = np.zeros((self.size, self.max_depth + 1), np.int32)
    for node, parent in enumerate(self.parents):
      paths[node] = paths[parent]
      paths[node, self.depth_Q[node] :] = node
    return paths


def _require_few(nodes: int) -> None:
  if nodes > MAX_NODES:
    raise UserError(
      f"tree: {nodes} nodes are too many; use at most {MAX_NODES}"
    )


def _shown(path: tuple[int, ...]) -> str:
  return str(path) if len(path) <= 12 else reprlib.repr(path)
