"""How many drafts are worth a pass: trees by reach, speeds by measured cost.

Calibration decodes some texts and records, at every position, where the
drafter had ranked the tokens that really came; `Ranks` below. From that
follows what any tree would have committed, without another run. Together with
measured times of a pass it says which tree to use, or that none pays.

  N: positions of a text, M: depths drafted, Q: nodes of a tree.

A node is reached if its whole path is right. Reach is counted per path and
never as a product of accuracies per depth: after a first draft that is wrong
the later ones are right far less often than they are on average, and the
product would spend the budget on side branches (vLLM pull request 42910
measured 22% where the spine had 65% to 84%).
"""

import heapq
from collections.abc import Iterable, Sequence

import numpy as np

from mtpjax.budget.levels import HEADS, Choice, Level, PassCosts
from mtpjax.decode.tree import Tree
from mtpjax.errors import UserError

# Per text an integer array [N, M]: [t, d - 1] is the rank, among the
# candidates of depth d after root t, of the token d places after t. From
# `MISS` on: not among them; negative: the text ends before.
Ranks = Sequence[np.ndarray]
MISS = 64


def grow(
  ranks: Ranks,
  max_nodes: int,
  max_width: int = 10,
  smoothing: float = 1.0,
) -> list[Tree]:
  """Grows a tree node by node, the node most often reached first.

  What may come next is the next sibling or the first child of a node that is
  there, so the ranks of siblings have no gaps. Reach is smoothed towards the
  accuracy of the depth, as if `smoothing` more positions had passed through
  the parent: with n(path) the positions at which a path is right,

    reach(path) = reach(parent) (n(path) + s a(d, r)) / (n(parent) + s)
    a(d, r)     = (n(rank r at depth d) + 1 / MISS) / (N + 1)

  which is n(path) / N for s = 0, and never more than reach(parent).

  Args:
    ranks: what calibration recorded.
    max_nodes: of the largest tree, root included.
    max_width: candidates per depth at most.
    smoothing: s, in positions.

  Returns:
    Trees of 1, 2, ..., max_nodes nodes, each within the next; fewer if depth
    and width leave no more nodes.

  Raises:
    UserError: nothing was recorded.
  """
  ranks_NM = np.minimum(_together(ranks)[0], MISS)
  n, depths = ranks_NM.shape
  max_width = min(max_width, MISS)
  accuracy_MC = np.stack(
    [
      (np.bincount(ranks_N, minlength=MISS + 1)[:MISS] + 1 / MISS) / (n + 1)
      for ranks_N in ranks_NM.T
    ]
  )

  # An entry has the path, where its parent is right, and reach and rank
  # counts of the parent. Ties go to the shorter path, then the lower ranks.
  frontier: list[tuple] = []

  def offer(path, at_parent, parent_reach, counts):
    prior = smoothing * accuracy_MC[len(path) - 1, path[-1]]
    share = (counts[path[-1]] + prior) / max(len(at_parent) + smoothing, 1e-9)
    reach = parent_reach * share
    entry = (-reach, len(path), path, at_parent, parent_reach, counts)
    heapq.heappush(frontier, entry)

  def offer_first_child(path, at_node, node_reach):
    depth = len(path)
    if depth < depths and max_width > 0:
      counts = np.bincount(ranks_NM[at_node, depth], minlength=MISS + 1)
      offer((*path, 0), at_node, node_reach, counts)

  paths: list[tuple[int, ...]] = []
  trees = [Tree.root()]
  offer_first_child((), np.arange(n), 1.0)
  while frontier and len(trees) < max_nodes:
    minus_reach, depth, path, at_parent, parent_reach, counts = heapq.heappop(
      frontier
    )
    paths.append(path)
    trees.append(Tree.from_rank_paths(paths))
    if path[-1] + 1 < max_width:
      offer((*path[:-1], path[-1] + 1), at_parent, parent_reach, counts)
    at_node = at_parent[ranks_NM[at_parent, depth - 1] == path[-1]]
    offer_first_child(path, at_node, -minus_reach)
  return trees


def reach(tree: Tree, ranks: Ranks) -> np.ndarray:
  """Returns how often the path of each node is right.

  Args:
    tree: the tree.
    ranks: what calibration recorded.

  Returns:
    float64 [Q], mean over all positions, not smoothed; 1 at the root.
  """
  deepest_N = _deepest(tree, _together(ranks)[0])
  share_Q = np.bincount(deepest_N, minlength=tree.size) / len(deepest_N)
  return share_Q @ tree.ancestors_QQ


def predicted(tree: Tree, ranks: Ranks) -> float:
  """Returns the tokens a pass would have committed, decoding the same texts.

  Walks every text as decoding does, so that a position counts as often as a
  pass begins there. A pass begins only where tokens of all depths are known,
  and then counts with all it commits, also past that point: the end of a text
  favours neither wide trees nor deep ones.

  Args:
    tree: the tree.
    ranks: what calibration recorded.

  Returns:
    Tokens over passes, at least 1.
  """
  ranks_NM, lengths = _together(ranks)
  advance = (1 + tree.depth_Q[_deepest(tree, ranks_NM)]).tolist()
  tokens = passes = start = 0
  for length in lengths:
    at, end = start, start + length
    while at < end:
      at += advance[at]
      passes += 1
    tokens += at - start
    start = end
  return tokens / passes


def choose(
  trees: Iterable[Tree],
  ranks: Ranks,
  costs: PassCosts,
  margin: float = 0.02,
  others: Iterable[Level] = (),
) -> Choice:
  """Chooses what commits the most tokens per second.

  Args:
    trees: candidates, as from `grow`; all chains and the root join them. None
      is larger than what was measured.
    ranks: what calibration recorded, best on other texts than the trees were
      grown on, which flatter them.
    costs: measured, with drafting and at the batch size to decode with.
    margin: gain over plain decoding below which none is taken.
    others: what other drafters do, measured.

  Returns:
    The choice and the reason for it.
  """
  plain = Level(Tree.root(), 1.0, costs.secs(1))
  best = plain
  for level in [*_candidates(trees, ranks, costs), *others]:
    if best is plain or level.tokens_per_sec > best.tokens_per_sec:
      best = level
  speed = best.tokens_per_sec / plain.tokens_per_sec
  nodes, ratio = best.tree.size, best.pass_secs / plain.pass_secs
  by = "" if best.mode == HEADS else f" by {best.mode}"
  if best is plain:
    reason = "plain decoding: no depth was drafted"
  elif speed > 1 + margin:
    reason = (
      f"{nodes} nodes{by}, {best.tree.max_depth} deep: "
      f"{best.tokens_per_pass:.2f} tokens per pass reach {speed:.2f}x: a pass "
      f"over {nodes} nodes costs {ratio:.2f} plain passes"
    )
  else:
    asked = f" of the {1 + margin:.2f}x asked for" if speed > 1 else ""
    reason = (
      f"plain decoding: the best tree ({nodes} nodes{by}, "
      f"{best.tokens_per_pass:.2f} tokens per pass) would reach only "
      f"{speed:.2f}x{asked}: a pass over {nodes} nodes costs {ratio:.2f} plain "
      "passes"
    )
    best, speed = plain, 1.0
  return Choice(
    best.tree,
    best.tokens_per_pass,
    best.pass_secs,
    best.tokens_per_sec,
    speed,
    reason,
    best.mode,
  )


def curve(
  trees: Iterable[Tree], ranks: Ranks, costs: PassCosts
) -> list[dict[str, float]]:
  """Returns what each tree would do, for a table or a figure.

  Args:
    trees: as from `grow`: one per number of nodes.
    ranks: what calibration recorded.
    costs: measured.

  Returns:
    Per tree nodes, tokens_per_pass, pass_secs, tokens_per_sec (of one row)
    and speed_over_plain.
  """
  rows = []
  for tree in trees:
    level = _level(tree, ranks, costs)
    rows.append(
      {
        "nodes": tree.size,
        "tokens_per_pass": level.tokens_per_pass,
        "pass_secs": level.pass_secs,
        "tokens_per_sec": level.tokens_per_sec,
        "speed_over_plain": level.tokens_per_sec * costs.secs(1),
      }
    )
  return rows


def levels_of(
  choice: Choice, trees: Iterable[Tree], ranks: Ranks, costs: PassCosts
) -> tuple[Level, ...]:
  """Returns the levels to switch between while decoding.

  The level in the middle has a quarter to half of the nodes and is the best
  where drafts are so much worse than calibrated that the chosen tree and
  plain decoding are equally fast. Where no tree beats both it is left out.

  Args:
    choice: from `choose`.
    trees: candidates for the middle; all chains join them.
    ranks: what calibration recorded.
    costs: measured.

  Returns:
    Plain decoding, a smaller tree, the chosen tree; no smaller one if another
    drafter than the heads was chosen; plain decoding alone if that was.
  """
  plain = Level(Tree.root(), 1.0, costs.secs(1))
  chosen = choice.level
  if chosen.tokens_per_pass <= 1:
    return (plain,)
  if chosen.mode != HEADS:
    return (plain, chosen)
  # The share of the predicted gain at which chosen and plain break even.
  share = (chosen.pass_secs / plain.pass_secs - 1) / (
    chosen.tokens_per_pass - 1
  )

  def speed_there(level: Level) -> float:
    return (1 + share * (level.tokens_per_pass - 1)) / level.pass_secs

  middle = [
    level
    for level in _candidates(trees, ranks, costs)
    if chosen.tree.size <= 4 * level.tree.size <= 2 * chosen.tree.size
    and speed_there(level) > plain.tokens_per_sec * (1 + 1e-6)
  ]
  return (plain, *([max(middle, key=speed_there)] if middle else ()), chosen)


def _candidates(
  trees: Iterable[Tree], ranks: Ranks, costs: PassCosts
) -> list[Level]:
  """Levels of the trees and all chains, small ones first, without the root."""
  depths = _together(ranks)[0].shape[1]
  chains = [Tree.chain(length) for length in range(1, depths + 1)]
  distinct = dict.fromkeys([*chains, *trees])
  return [
    _level(tree, ranks, costs)
    for tree in sorted(distinct, key=lambda tree: tree.size)
    if 1 < tree.size <= costs.max_nodes
  ]


def _level(tree: Tree, ranks: Ranks, costs: PassCosts) -> Level:
  secs = costs.secs(tree.size, tree.max_depth)
  return Level(tree, predicted(tree, ranks), secs)


def _together(ranks: Ranks) -> tuple[np.ndarray, list[int]]:
  """Joins the texts up to their last position with tokens of all depths.

  Returns:
    [N, M] of all texts and how many positions come from each.
  """
  if len({ranks_NM.shape[1] for ranks_NM in ranks}) != 1:
    raise UserError(
      "calibration: no texts, or texts with different depths; calibrate again"
    )
  known = []
  for ranks_NM in ranks:
    ends_N = (ranks_NM < 0).any(axis=1)
    known.append(ranks_NM[: np.argmax(ends_N) if ends_N.any() else None])
  lengths = [len(ranks_NM) for ranks_NM in known]
  if not sum(lengths):
    raise UserError(
      f"calibration: no text is longer than the {ranks[0].shape[1]} tokens "
      "drafted; generate longer ones"
    )
  return np.concatenate(known), lengths


def _deepest(tree: Tree, ranks_NM: np.ndarray) -> np.ndarray:
  """Returns the deepest right node at each position, [N].

  There is one path of right nodes, because siblings differ.
  """
  depths = ranks_NM.shape[1]
  if tree.max_depth > depths:
    raise UserError(
      f"tree: it is {tree.max_depth} drafts deep and calibration drafted "
      f"{depths}; cut it or calibrate again"
    )
  nothing = tree.width  # after the last rank, so the table says -1
  table_QC = np.full((tree.size, nothing + 1), -1)
  for node in range(1, tree.size):
    table_QC[tree.parents[node], tree.ranks[node]] = node
  node_N = np.zeros(len(ranks_NM), int)
  right_N = np.ones(len(ranks_NM), bool)
  for depth in range(tree.max_depth):
    child_N = table_QC[node_N, np.minimum(ranks_NM[:, depth], nothing)]
    right_N &= child_N >= 0
    node_N = np.where(right_N, child_N, node_N)
  return node_N
