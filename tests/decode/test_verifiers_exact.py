"""Lossless to the last digit: every draw and every outcome is enumerated."""

import collections

import enumeration as en
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mtpjax import decode
from mtpjax.decode import verifiers

TREES = [
  *en.ordered_trees(max_nodes=6, max_depth=3),
  # Siblings whose order as nodes is not that of their ranks.
  decode.Tree((0, 0, 0, 2, 1, 2), (0, 1, 0, 1, 0, 0)),
]
RULES = {
  "rejection": verifiers.Rejection().judge,
  "block": verifiers.Block().judge,
}
CHAINS = [decode.Tree.chain(n) for n in range(5)]
# One shape for all batches: every operation is compiled once.
ROWS = 2560


def judge(verifier, tree, all_rows, dtype=np.float64):
  """Returns Conditionals, in NumPy, for each of the batches."""
  batch = [
    np.concatenate(parts) for parts in zip(*all_rows, strict=True)
  ][:4]  # fmt: skip
  n = len(batch[0])
  assert n <= ROWS
  tokens_BQ, valid_BQ, target_BQV, draft_BMV = (
    np.resize(x, (ROWS, *x.shape[1:])) for x in batch
  )
  conditionals = verifier(
    tree,
    jnp.asarray(tokens_BQ),
    jnp.asarray(valid_BQ),
    jnp.asarray(target_BQV, dtype),
    jnp.asarray(draft_BMV, dtype),
  )
  assert conditionals.accept_BQ.dtype == dtype
  assert conditionals.emit_BQV.dtype == dtype
  accept_BQ = np.asarray(conditionals.accept_BQ)[:n]
  emit_BQV = np.asarray(conditionals.emit_BQV)[:n]
  assert np.all((accept_BQ >= 0) & (accept_BQ <= 1))
  assert np.all(emit_BQV >= 0)
  np.testing.assert_allclose(
    emit_BQV.sum(axis=-1), 1, atol=1e-12 if dtype == np.float64 else 1e-6
  )
  splits = np.cumsum([len(rows.weight_B) for rows in all_rows])[:-1]
  return list(
    zip(np.split(accept_BQ, splits), np.split(emit_BQV, splits), strict=True)
  )


def random_draft(rng, tables, d, kind):
  """q of depth d + 1."""
  v = len(tables[0])
  if kind == "equal":
    return tables[d][(0,) * d]
  if kind == "one-hot":
    return np.eye(v)[rng.integers(v)]
  q_V = rng.dirichlet(np.full(v, 0.7))
  if kind == "zeros":
    q_V[rng.integers(v)] = 0
  return q_V / q_V.sum()


def valid_nodes(rng, tree):
  """Drops nodes, and all that were drawn behind them."""
  valid_Q = np.ones(tree.size, bool)
  for node in range(tree.size):
    children = en.children_of(tree, node)
    valid_Q[children[rng.integers(len(children) + 1) :]] = False
  return valid_Q


def cases(rng, tree, v):
  """Yields (tables, rows)."""
  for case in ("soft", "zeros", "one-hot", "equal", "mixed", "invalid"):
    tables = en.random_tables(rng, v, tree.max_depth + 1)
    if case == "equal":
      # q is the same behind every parent, so p has to be as well.
      tables = [
        np.broadcast_to(table[(0,) * d], table.shape)
        for d, table in enumerate(tables)
      ]
    kinds = [case] * tree.max_depth
    if case in ("mixed", "invalid"):
      kinds = rng.choice(["soft", "zeros", "one-hot"], tree.max_depth)
    draft_MV = np.array(
      [random_draft(rng, tables, d, kind) for d, kind in enumerate(kinds)]
    ).reshape(-1, v)
    valid_Q = valid_nodes(rng, tree) if case == "invalid" else None
    rows = en.drafts(tree, tables, draft_MV, valid_Q=valid_Q)
    np.testing.assert_allclose(rows.weight_B.sum(), 1, atol=1e-12)
    if case == "zeros":
      # Exhausted lists may also repeat themselves: q has no mass there.
      again_BQ = rows.tokens_BQ < 0
      first_Q = [en.children_of(tree, parent)[0] if q else 0
                 for q, parent in enumerate(tree.parents)]  # fmt: skip
      rows = rows._replace(
        tokens_BQ=np.where(
          again_BQ, rows.tokens_BQ[:, first_Q], rows.tokens_BQ
        ),
        valid_BQ=np.ones_like(rows.valid_BQ),
      )
    yield tables, rows


def largest_distance(verifier, trees, v, dtype=np.float64):
  rng = np.random.default_rng(v)
  distances = collections.defaultdict(float)
  for tree in trees:
    every = list(cases(rng, tree, v))
    judged = judge(verifier, tree, [rows for _, rows in every], dtype)
    for (tables, rows), (accept_BQ, emit_BQV) in zip(
      every, judged, strict=True
    ):
      joint = en.outcome(tree, tables, rows, accept_BQ, emit_BQV)
      distance = en.total_variation(joint, en.law(tables, joint.ndim))
      distances[tree] = max(distances[tree], distance)
  assert len(distances) == len(trees)
  return max(distances.values()), max(distances, key=distances.get)


def test_all_shapes_are_there():
  # Plane trees of 1 to 6 nodes, of them those of height 3 at most.
  n_nodes = collections.Counter(tree.size for tree in TREES[:-1])
  assert n_nodes == {1: 1, 2: 1, 3: 2, 4: 5, 5: 13, 6: 34}
  assert len(set(TREES)) == len(TREES)


@pytest.mark.parametrize("v", [2, 3, 4])
def test_rejection_is_lossless(v, x64):
  distance, tree = largest_distance(RULES["rejection"], TREES, v)
  assert distance <= en.TOLERANCE, tree


@pytest.mark.parametrize("v", [2, 3, 4])
def test_block_is_lossless(v, x64):
  distance, tree = largest_distance(RULES["block"], CHAINS, v)
  assert distance <= en.TOLERANCE, tree


def test_typical_is_not(x64):
  # p = (0.6, 0.4) everywhere: its likelier token always passes.
  tree = decode.Tree.chain(1)
  p_V = np.array([0.6, 0.4])
  tables = [p_V, np.broadcast_to(p_V, (2, 2))]
  rows = en.drafts(tree, tables, np.array([[1.0, 0.0]]))

  typical = verifiers.Typical(0.3, 0.6)
  [(accept_BQ, emit_BQV)] = judge(typical.judge, tree, [rows])
  joint = en.outcome(tree, tables, rows, accept_BQ, emit_BQV)
  np.testing.assert_allclose(joint.sum(axis=1), [1, 0], atol=en.TOLERANCE)
  distance = en.total_variation(joint, en.law(tables, 2))
  assert distance == pytest.approx(0.4) and distance > 0.01


def test_a_hole_among_drawn_siblings_is_not_lossless_either(x64):
  # What stands behind it was drawn knowing of it: why `rejection` forbids it.
  tree = decode.Tree.from_rank_paths([(0,), (1,), (2,)])
  tables = [np.array([0.2, 0.3, 0.5]), np.full((3, 3), 1 / 3)]
  draft_MV = np.array([[0.7, 0.2, 0.1]])
  rows = en.drafts(
    tree, tables, draft_MV, valid_Q=np.array([True, True, False, True])
  )
  [(accept_BQ, emit_BQV)] = judge(RULES["rejection"], tree, [rows])
  joint = en.outcome(tree, tables, rows, accept_BQ, emit_BQV)
  assert en.total_variation(joint, en.law(tables, 2)) > 0.01


def accepted(verifier, tree, cases):
  judged = judge(verifier, tree, [rows for _, rows in cases])
  return np.array([
    en.mean_accepted(tree, rows, accept_BQ)
    for (_, rows), (accept_BQ, _) in zip(cases, judged, strict=True)
  ])  # fmt: skip


def test_known_numbers_of_accepted_drafts(x64):
  tree = decode.Tree.chain(2)
  p_V, q_V = np.array([1 / 3, 2 / 3]), np.array([2 / 3, 1 / 3])
  tables = [np.broadcast_to(p_V, (2,) * (d + 1)) for d in range(3)]
  case = [(tables, en.drafts(tree, tables, np.array([q_V, q_V])))]
  assert accepted(RULES["rejection"], tree, case) == pytest.approx(
    10 / 9, abs=en.TOLERANCE
  )
  assert accepted(RULES["block"], tree, case) == pytest.approx(
    11 / 9, abs=en.TOLERANCE
  )


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_block_accepts_no_fewer_than_rejection(length, x64):
  tree = decode.Tree.chain(length)
  rng = np.random.default_rng(length)
  every = []
  for _ in range(20):
    tables = en.random_tables(rng, 3, length + 1)
    draft_MV = rng.dirichlet(np.full(3, 0.7), length)
    every.append((tables, en.drafts(tree, tables, draft_MV)))
  by_block = accepted(RULES["block"], tree, every)
  by_rejection = accepted(RULES["rejection"], tree, every)
  assert np.all(by_block >= by_rejection - en.TOLERANCE)
  if length == 1:
    np.testing.assert_allclose(by_block, by_rejection, atol=en.TOLERANCE)
  else:
    assert np.mean(by_block - by_rejection) > 0.01
  # A second way to the number: the mean of p_i, summed over the depths.
  for (_, rows), got in zip(every, by_block, strict=True):
    weight_B, total = np.ones(len(rows.weight_B)), 0.0
    for d in range(length):
      token_B = rows.tokens_BQ[:, d + 1]
      p_B = np.take_along_axis(
        rows.target_BQV[:, d], token_B[:, None], axis=1
      )[:, 0]  # fmt: skip
      weight_B = np.minimum(1, weight_B * p_B / rows.draft_BMV[0, d, token_B])
      total += rows.weight_B @ weight_B
    assert got == pytest.approx(total, abs=en.TOLERANCE)


def test_float32_is_as_close_as_its_digits():
  for verifier, tree in (
    (RULES["rejection"], TREES[40]),
    (RULES["block"], CHAINS[3]),
  ):
    jitted = jax.jit(verifier, static_argnums=0)
    distance, _ = largest_distance(jitted, [tree], 4, np.float32)
    assert distance < 1e-6


WIDE = decode.Tree.from_rank_paths(
  [(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (2, 0), (0, 0, 0), (2, 0, 0)]
)


@pytest.mark.parametrize("name", ["soft", "one-hot", "block", "typical"])
def test_cold_targets_leave_the_path_of_match(name):
  tree = decode.Tree.chain(3) if name == "block" else WIDE
  rng = np.random.default_rng(3)
  rows, v = 300, 4
  targets_BQ = rng.integers(0, v, (rows, tree.size))
  # The same three candidates under every parent of a depth.
  lists_BMC = np.argsort(rng.random((rows, 3, v)), axis=-1)
  tokens_BQ = np.array([
    [0, *(lists_BMC[b, tree.depth_Q[q] - 1, tree.ranks[q]]
          for q in range(1, tree.size))]
    for b in range(rows)
  ])  # fmt: skip
  # Some rows are right all the way down the likeliest candidates.
  spine_M = [0, 1, 2] if name == "block" else [0, 1, 4]
  targets_BQ[::4, spine_M] = lists_BMC[::4, :, 0]
  valid_BQ = rng.random(tokens_BQ.shape) < 0.9
  draft_BMV = rng.dirichlet(np.ones(v), (rows, 3)).astype(np.float32)
  if name == "one-hot":
    draft_BMV = np.eye(v, dtype=np.float32)[lists_BMC[..., 0]]
    valid_BQ &= np.array(tree.ranks) == 0
  target_BQV = np.eye(v, dtype=np.float32)[targets_BQ]
  rules = RULES | {"typical": verifiers.Typical(0.3, 0.6).judge}
  verifier = rules.get(name, RULES["rejection"])
  args = [jnp.asarray(x) for x in (tokens_BQ, valid_BQ)]
  conditionals = jax.jit(verifier, static_argnums=0)(
    tree, *args, jnp.asarray(target_BQV), jnp.asarray(draft_BMV)
  )
  uniforms = rng.random((rows, tree.size + 1)).astype(np.float32)
  uniforms[::3] = 0
  uniforms[1::3] = 1 - 2**-24
  got = jax.jit(verifiers.sample, static_argnums=0)(
    tree, args[0], conditionals, uniforms[:, 1:], uniforms[:, 0]
  )
  want = jax.jit(verifiers.match, static_argnums=0)(
    tree, *args, jnp.asarray(targets_BQ)
  )
  for name, wanted in vars(want).items():
    np.testing.assert_array_equal(getattr(got, name), wanted, name)
  assert set(np.asarray(want.n_tokens_B).tolist()) == {1, 2, 3, 4}


@pytest.mark.parametrize("parents, ranks, node", [
  ((0, 0, 0), (0, 0, 2), 0),
  ((0, 0, 1), (0, 0, 1), 1),
])  # fmt: skip
def test_rejection_wants_the_first_of_each_list(parents, ranks, node):
  with pytest.raises(ValueError, match=f"verifier: .*node {node} ") as error:
    verifiers.Rejection().check(decode.Tree(parents, ranks))
  assert "\n" not in str(error.value)


@pytest.mark.parametrize("parents, ranks, node", [
  ((0, 0, 0), (0, 0, 1), 2),
  ((0, 0, 1), (0, 0, 1), 2),
])  # fmt: skip
def test_block_wants_a_chain(parents, ranks, node):
  with pytest.raises(ValueError, match=f"verifier: .*node {node} ") as error:
    verifiers.Block().check(decode.Tree(parents, ranks))
  assert "\n" not in str(error.value)


def test_trees_that_pass():
  for tree in TREES:
    verifiers.Rejection().check(tree)
  for tree in CHAINS:
    verifiers.Block().check(tree)
