"""Known slips, to show that the test of losslessness finds them.

Each is a draw, a verifier, or both, as others have shipped them. Next to each
stands what it makes of the target, computed by hand.
"""

import enumeration as en
import jax.numpy as jnp
import numpy as np
import pytest

from mtpjax import decode
from mtpjax.decode import verifiers

ONE = decode.Tree.chain(1)
TWO = decode.Tree.from_rank_paths([(0,), (1,)])
THREE_ROWS_AND_ONE = decode.Tree.from_rank_paths(
  [(0,), (1,), (0, 0), (0, 1), (0, 2), (1, 0)]
)


def right(tree, rows):
  """Not a slip."""
  result = verifiers.Rejection().judge(tree, *map(jnp.asarray, rows[:4]))
  return np.asarray(result.accept_BQ), np.asarray(result.emit_BQV)


def first_children(tree, rows):
  """Returns (tokens, p of them, p) behind the root."""
  tokens_BC = rows.tokens_BQ[:, en.children_of(tree, 0)]
  p_BV = rows.target_BQV[:, 0]
  return tokens_BC, np.take_along_axis(p_BV, tokens_BC, axis=1), p_BV


def answer(rows, accept_BC, emit_BV):
  """Conditionals of a tree whose children of the root come first."""
  accept_BQ = np.zeros(rows.tokens_BQ.shape)
  accept_BQ[:, 1 : accept_BC.shape[1] + 1] = accept_BC
  emit_BQV = rows.target_BQV.copy()
  emit_BQV[:, 0] = emit_BV
  return accept_BQ, emit_BQV


def fresh_draw(tree, rows):
  """Draws from p itself when a deterministic draft was rejected."""
  _, p_BC, p_BV = first_children(tree, rows)
  return answer(rows, p_BC, p_BV)


def one_sample_per_row(tree, rows):
  """Each path draws its own token: shared nodes have several chances."""
  tokens_BC, p_BC, p_BV = first_children(tree, rows)
  is_leaf_Q = [not en.children_of(tree, node) for node in range(tree.size)]
  paths_C = [
    sum(is_leaf_Q & tree.ancestors_QQ[:, child])
    for child in en.children_of(tree, 0)
  ]
  accept_BC = 1 - (1 - p_BC) ** np.array(paths_C)
  # If no row matches, the first one's token comes, which isn't its draft.
  emit_BV = p_BV.copy()
  np.put_along_axis(emit_BV, tokens_BC[:, :1], 0, axis=1)
  return answer(rows, accept_BC, emit_BV / emit_BV.sum(axis=1, keepdims=True))


def softmax_of_residual(tree, rows):
  """Makes the residual a distribution in the wrong way."""
  tokens_BC, p_BC, p_BV = first_children(tree, rows)
  q_BV = rows.draft_BMV[:, 0]
  accept_BC = np.minimum(1, p_BC / np.take_along_axis(q_BV, tokens_BC, 1))
  emit_BV = np.exp(np.maximum(p_BV - q_BV, 0))
  return answer(rows, accept_BC, emit_BV / emit_BV.sum(axis=1, keepdims=True))


def one_coin(tree, rows):
  """The first child whose running sum of p passes one coin.

  Right for children that differ.
  """
  tokens_BC, p_BC, p_BV = first_children(tree, rows)
  before_BC = np.cumsum(p_BC, axis=1) - p_BC
  emit_BV = p_BV.copy()
  np.put_along_axis(emit_BV, tokens_BC, 0, axis=1)
  emit_BV /= emit_BV.sum(axis=1, keepdims=True)
  return answer(rows, p_BC / (1 - before_BC), emit_BV)


def likeliest(q_V, k):
  yield tuple(np.argsort(-q_V, kind="stable")[:k].tolist()), 1.0


def likeliest_twice(q_V, k):
  yield (int(np.argmax(q_V)),) * k, 1.0


def likelier_of_two(q_V, k):
  assert k == 1
  for a, p_a in enumerate(q_V):
    for b, p_b in enumerate(q_V):
      yield (a if q_V[a] >= q_V[b] else b,), p_a * p_b


def sorted_by_q(q_V, k):
  for tokens, probability in en.without_replacement(q_V, k):
    yield tuple(sorted(tokens, key=lambda token: -q_V[token])), probability


def distribution(slip, p, q, tree, draw):
  """Returns what becomes of the first token, and the total variation."""
  p_V = np.array(p)
  v = len(p)
  tables = [
    np.broadcast_to(p_V, (v,) * (d + 1)) for d in range(tree.max_depth + 1)
  ]
  draft_MV = np.tile(np.array(q), (tree.max_depth, 1))
  rows = en.drafts(tree, tables, draft_MV, draw)
  joint = en.outcome(tree, tables, rows, *slip(tree, rows))
  first_V = joint.sum(axis=tuple(range(1, joint.ndim)))
  return first_V, en.total_variation(joint, en.law(tables, joint.ndim))


EXACT, THREE_DECIMALS = en.TOLERANCE, 5e-4
P, Q = (1 / 2, 1 / 4, 1 / 4), (3 / 5, 1 / 5, 1 / 5)
SLIPS = {
  "a greedy draft, its soft q": (
    right, (0.6, 0.4), (0.8, 0.2), ONE, likeliest,
    (0.75, 0.25), EXACT,
  ),
  "a fresh draw from p": (
    fresh_draw, P, Q, ONE, likeliest,
    (3 / 4, 1 / 8, 1 / 8), EXACT,
  ),
  "one sample per row": (
    one_sample_per_row, (1 / 2, 1 / 2), (0.6, 0.4), THREE_ROWS_AND_ONE,
    lambda q_V, k: iter([((0, 1, 0)[:k], 1.0)]),
    (7 / 8, 1 / 8), EXACT,
  ),
  "softmax of the residual": (
    softmax_of_residual, P, Q, ONE, en.without_replacement,
    (0.532, 0.234, 0.234), THREE_DECIMALS,
  ),
  "siblings twice the same": (
    one_coin, P, Q, TWO, likeliest_twice,
    (1, 0, 0), EXACT,
  ),
  "the likelier of two draws": (
    right, P, Q, ONE, likelier_of_two,
    (7 / 10, 3 / 20, 3 / 20), EXACT,
  ),
  "siblings sorted by q": (
    right, (1 / 2, 1 / 4, 1 / 8, 1 / 8), (1 / 8, 1 / 2, 1 / 4, 1 / 8), TWO,
    sorted_by_q,
    (1 / 2, 17 / 42, 13 / 168, 1 / 56), EXACT,
  ),
}  # fmt: skip


@pytest.mark.parametrize("name", SLIPS)
def test_a_slip_is_found(name, x64):
  *slip, becomes, tolerance = SLIPS[name]
  first_V, distance = distribution(*slip)
  np.testing.assert_allclose(first_V, becomes, rtol=0, atol=tolerance)
  assert distance > 0.01


@pytest.mark.parametrize("slip, p, q, tree, draw", [
  (right, (0.6, 0.4), (1.0, 0.0), ONE, likeliest),
  (right, P, (1.0, 0.0, 0.0), ONE, likeliest),
  (right, P, Q, ONE, en.without_replacement),
  (right, P, Q, TWO, en.without_replacement),
  (one_coin, P, Q, TWO, likeliest),
  (right, (1 / 2, 1 / 4, 1 / 8, 1 / 8), (1 / 8, 1 / 2, 1 / 4, 1 / 8), TWO,
   en.without_replacement),
])  # fmt: skip
def test_without_the_slip_nothing_is(slip, p, q, tree, draw, x64):
  first_V, distance = distribution(slip, p, q, tree, draw)
  np.testing.assert_allclose(first_V, p, rtol=0, atol=en.TOLERANCE)
  assert distance <= en.TOLERANCE
