"""Everything a verifier can be given and can do, with probabilities.

Written in NumPy, apart from the verifiers. A target is a list of tables, the
d-th of shape [V] * d + [V]: the distribution behind each text of d tokens.
"""

import itertools
from typing import NamedTuple

import numpy as np

from mtpjax import decode

TOLERANCE = 1e-12


class Drafts(NamedTuple):
  """One row for each draw of the lists."""

  tokens_BQ: np.ndarray
  valid_BQ: np.ndarray
  target_BQV: np.ndarray
  draft_BMV: np.ndarray
  weight_B: np.ndarray


def ordered_trees(max_nodes, max_depth):
  """All shapes, the root included in the nodes; siblings ranked 0, 1, ..."""

  def forests(nodes, depth):
    if nodes == 0:
      yield ()
    elif depth:
      for first in range(1, nodes + 1):
        for child in forests(first - 1, depth - 1):
          for others in forests(nodes - first, depth):
            yield child, *others

  def paths(forest, above=()):
    for rank, child in enumerate(forest):
      yield *above, rank
      yield from paths(child, (*above, rank))

  return [
    decode.Tree.from_rank_paths(paths(forest))
    for nodes in range(max_nodes)
    for forest in forests(nodes, max_depth)
  ]


def without_replacement(q_V, k):
  """Yields (tokens, probability); -1 where nothing is left to draw."""
  n = min(k, int(np.count_nonzero(q_V)))
  for tokens in itertools.permutations(np.flatnonzero(q_V).tolist(), n):
    probability, left = 1.0, q_V.copy()
    for token in tokens:
      probability *= left[token] / left.sum()
      left[token] = 0
    yield tokens + (-1,) * (k - n), probability


def children_of(tree, node):
  """In rank order."""
  return sorted(
    (n for n in range(1, tree.size) if tree.parents[n] == node),
    key=lambda n: tree.ranks[n],
  )


def behind(tables, tokens):
  """The distribution behind a text; tokens that are none count as 0."""
  return tables[len(tokens)][tuple(max(t, 0) for t in tokens)]


def drafts(
  tree, tables, draft_MV, draw=without_replacement, valid_Q=None
):  # fmt: skip
  """Enumerates what the nodes of a tree can hold.

  Args:
    tree: the tree.
    tables: the target.
    draft_MV: what the list of each depth is drawn from.
    draw: yields the lists of one depth.
    valid_Q: nodes that hold a draft at all.
  """
  valid_Q = np.ones(tree.size, bool) if valid_Q is None else valid_Q
  depth_Q = tree.depth_Q
  lists = [
    list(draw(draft_MV[d], 1 + max(
      rank for rank, at in zip(tree.ranks, depth_Q, strict=True)
      if at == d + 1
    )))
    for d in range(tree.max_depth)
  ]  # fmt: skip
  tokens, targets, weights = [], [], []
  for drawn in itertools.product(*lists):
    texts, row = [()], [0]
    for q in range(1, tree.size):
      token = drawn[depth_Q[q] - 1][0][tree.ranks[q]]
      texts.append((*texts[tree.parents[q]], token))
      row.append(token)
    tokens.append(row)
    targets.append([behind(tables, text) for text in texts])
    weights.append(np.prod([probability for _, probability in drawn]))
  tokens_BQ = np.array(tokens)
  return Drafts(
    tokens_BQ,
    (tokens_BQ >= 0) & valid_Q,
    np.array(targets),
    np.broadcast_to(draft_MV, (len(tokens), *draft_MV.shape)),
    np.array(weights),
  )


def stop_probabilities(tree, accept_BQ):
  """[B, Q]: where the walk ends."""
  reach_BQ = np.zeros(accept_BQ.shape)
  reach_BQ[:, 0] = 1
  stop_BQ = np.zeros(accept_BQ.shape)
  order = sorted(range(tree.size), key=lambda node: tree.depth_Q[node])
  for node in order:
    left_B = reach_BQ[:, node].copy()
    for child in children_of(tree, node):
      reach_BQ[:, child] = left_B * accept_BQ[:, child]
      left_B *= 1 - accept_BQ[:, child]
    stop_BQ[:, node] = left_B
  return stop_BQ


def law(tables, length):
  """Distribution [V] * length of the first tokens of the target's texts."""
  joint = tables[0]
  for table in tables[1:length]:
    joint = joint[..., None] * table
  return joint


def outcome(tree, tables, rows, accept_BQ, emit_BQV):
  """The law of the first max_depth + 1 tokens.

  The target continues what ends before.
  """
  stop_BQ = stop_probabilities(tree, np.asarray(accept_BQ))
  emit_BQV = np.asarray(emit_BQV)
  v = emit_BQV.shape[-1]
  ends = [np.zeros((v,) * (d + 1)) for d in range(tree.max_depth + 1)]
  for node in range(tree.size):
    path = tree.paths_QJ[node][1 : tree.depth_Q[node] + 1]
    come_B = stop_BQ[:, node] > 0
    # A node without a token can't be where a walk ends.
    assert np.all(rows.tokens_BQ[come_B][:, path] >= 0)
    text = tuple(rows.tokens_BQ[come_B][:, path].T)
    mass_BV = (
      (rows.weight_B * stop_BQ[:, node])[come_B, None]
      * emit_BQV[come_B, node]
    )  # fmt: skip
    if not text:
      ends[0] += mass_BV.sum(axis=0)
    else:
      np.add.at(ends[len(path)], text, mass_BV)
  joint = ends[0]
  for d in range(1, tree.max_depth + 1):
    joint = ends[d] + joint[..., None] * tables[d]
  np.testing.assert_allclose(joint.sum(), 1, rtol=0, atol=1e-5)
  return joint


def total_variation(a, b):
  return 0.5 * np.abs(a - b).sum()


def mean_accepted(tree, rows, accept_BQ):
  """Drafts taken on average."""
  stop_BQ = stop_probabilities(tree, np.asarray(accept_BQ))
  return float(rows.weight_B @ (stop_BQ @ tree.depth_Q))


def random_tables(rng, v, n):
  """n tables; every path has a distribution of its own, some with zeros."""
  tables = []
  for d in range(n):
    table = rng.dirichlet(np.full(v, 0.7), (v,) * d)
    if v > 2 and rng.random() < 0.5:
      table[..., rng.integers(v)] = 0
      table /= table.sum(axis=-1, keepdims=True)
    tables.append(table)
  return tables
