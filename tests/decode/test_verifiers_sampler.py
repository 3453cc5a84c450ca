"""The walk by coins and the inverse CDF, with chosen uniforms."""

import collections
import functools
import itertools

import enumeration as en
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mtpjax import decode
from mtpjax.decode import verifiers
from mtpjax.decode.verifiers import sampler

LARGEST = np.float32(1 - 2**-24)
TWO = decode.Tree.from_rank_paths([(0,), (1,)])
# Ranks and nodes in opposite order.
SWAPPED = decode.Tree((0, 0, 0, 1), (0, 1, 0, 0))


@functools.partial(jax.jit, static_argnums=0)
def sample(tree, tokens_BQ, accept_BQ, emit_BQV, uniform_BQ, uniform_B):
  conditionals = verifiers.Conditionals(accept_BQ, emit_BQV)
  return verifiers.sample(tree, tokens_BQ, conditionals, uniform_BQ, uniform_B)


def row(tree, tokens, accept, emit_QV, coins, uniform):
  """Samples one row; returns (nodes, tokens) without repetitions."""
  verdict = sample(
    tree,
    jnp.array([tokens]),
    jnp.array([accept], jnp.float32),
    jnp.array([emit_QV], jnp.float32),
    jnp.array([coins], jnp.float32),
    jnp.array([uniform], jnp.float32),
  )
  n = int(verdict.n_tokens_B[0])
  path, committed = verdict.path_BJ[0].tolist(), verdict.tokens_BJ[0].tolist()
  assert len(path) == len(committed) == tree.max_depth + 1
  assert set(path[n:]) <= {path[n - 1]}
  return path[:n], committed[:n]


def test_a_uniform_of_0_does_not_accept_probability_0():
  emit_QV = np.eye(3)
  assert row(TWO, [0, 1, 2], [1, 0, 0], emit_QV, [0, 0, 0], 0) == ([0], [0])
  assert row(TWO, [0, 1, 2], [1, 0, 1e-30], emit_QV, [0, 0, 0], 0) == (
    [0, 2],
    [2, 2],
  )


def test_probability_1_accepts_the_largest_uniform():
  got = row(TWO, [0, 1, 2], [0, 1, 1], np.eye(3), [LARGEST] * 3, LARGEST)
  assert got == ([0, 1], [1, 1])


@pytest.mark.parametrize("coins, path", [
  ([0.9, 0.9, 0.9, 0.9], [0]),
  ([0.9, 0.9, 0.1, 0.9], [0, 2]),
  ([0.9, 0.1, 0.9, 0.9], [0, 1]),
  ([0.9, 0.1, 0.9, 0.1], [0, 1, 3]),
  ([0.9, 0.9, 0.9, 0.1], [0]),
  # Rank 0 is node 2, and comes first.
  ([0.9, 0.1, 0.1, 0.1], [0, 2]),
])  # fmt: skip
def test_the_first_sibling_by_rank_is_taken(coins, path):
  tokens = [9, 4, 5, 6]
  emit_QV = np.eye(10)[:4]
  got = row(SWAPPED, tokens, [0.5] * 4, emit_QV, coins, 0.5)
  assert got == (path, [*(tokens[node] for node in path[1:]), path[-1]])


def test_the_root_alone_emits():
  root = decode.Tree.root()
  got = row(root, [3], [0], [[0, 0.25, 0.75]], [0], 0.5)
  assert got == ([0], [2])


def test_token_0_is_a_token():
  tree = decode.Tree.chain(2)
  emit_QV = np.tile([1.0, 0], (3, 1))
  assert row(tree, [0, 0, 0], [1, 1, 1], emit_QV, [0.5] * 3, 0.5) == (
    [0, 1, 2],
    [0, 0, 0],
  )
  assert row(tree, [0, 0, 0], [1, 1, 0], emit_QV, [0.5] * 3, LARGEST) == (
    [0, 1],
    [0, 0],
  )


@pytest.mark.parametrize("scale", [1, 1 - 1e-6, 1 + 1e-6])
@pytest.mark.parametrize("v", [2, 7, 1000, 1003])
def test_no_token_without_mass_is_emitted(v, scale):
  rng = np.random.default_rng(v)
  rows, edge = 200, v // 4 + 1
  mass_BV = rng.dirichlet(np.ones(v), rows)
  mass_BV[:, rng.random(v) < 0.4] = 0
  # Rows with mass at one end, at the other, in the middle, and of one token.
  mass_BV[0::4, :edge] = mass_BV[1::4, -edge:] = 0
  mass_BV[2::4, :edge] = mass_BV[2::4, -edge:] = 0
  mass_BV[3::4] = np.eye(v)[rng.integers(0, v, rows // 4)]
  mass_BV[mass_BV.sum(axis=1) == 0, v // 2] = 1
  mass_BV *= scale / mass_BV.sum(axis=1, keepdims=True)
  mass_BV = mass_BV.astype(np.float32)
  first_B = np.argmax(mass_BV > 0, axis=1)
  last_B = v - 1 - np.argmax(mass_BV[:, ::-1] > 0, axis=1)
  draw = jax.jit(sampler.inverse_cdf)
  for uniform in (0, 2**-149, 0.25, 0.5, 1 - 2**-23, LARGEST):
    got_B = draw(mass_BV, np.full(rows, uniform, np.float32))
    assert np.all(mass_BV[np.arange(rows), got_B] > 0)
    if uniform == 0:
      np.testing.assert_array_equal(got_B, first_B)
    if uniform == LARGEST:
      # Tokens too small for a float32 beside 1 may be passed over.
      is_large_B = mass_BV[np.arange(rows), last_B] > 1e-5
      assert is_large_B.sum() > rows // 2
      np.testing.assert_array_equal(
        np.asarray(got_B)[is_large_B], last_B[is_large_B]
      )


def test_a_cumulative_sum_that_shrinks_does_no_harm(monkeypatch):
  # What a parallel sum does to zeros, more than it ever would.
  mass_BV = jnp.array([[0, 0.5, 0, 0.5, 0]], jnp.float32)
  sums = np.array([[1e-7, 0.5, 0.5 + 1e-7, 1.0, 1 - 1e-6]], np.float32)
  monkeypatch.setattr(sampler.jnp, "cumsum", lambda x, axis: jnp.asarray(sums))
  for uniform, token in ((0, 1), (0.501, 3), (LARGEST, 3)):
    got_B = sampler.inverse_cdf(mass_BV, jnp.array([uniform], jnp.float32))
    assert got_B.tolist() == [token]


def test_a_grid_of_uniforms_gives_the_enumerated_probabilities():
  # Multiples of 1/4, so that a grid of 4 midpoints is exact.
  grid = [0.125, 0.375, 0.625, 0.875]
  tree, v = SWAPPED, 3
  accept_Q = np.array([1, 0.5, 0.25, 0.75])
  emit_QV = np.array(
    [[0, 0.25, 0.75], [0.5, 0.5, 0], [1, 0, 0], [0.25, 0.5, 0.25]]
  )
  coins_B4 = np.array(list(itertools.product(grid, repeat=4)), np.float32)
  n = len(coins_B4)
  tokens_Q = np.array([7, 4, 5, 6])
  verdict = sample(
    tree,
    jnp.tile(tokens_Q, (n, 1)),
    np.tile(accept_Q, (n, 1)).astype(np.float32),
    np.tile(emit_QV, (n, 1, 1)).astype(np.float32),
    np.insert(coins_B4[:, :3], 0, 0, axis=1),
    coins_B4[:, 3],
  )
  counts = collections.Counter(
    (path[-1], tokens[length - 1])
    for path, tokens, length in zip(
      *(np.asarray(x).tolist() for x in vars(verdict).values()), strict=True
    )
  )
  stop_Q = en.stop_probabilities(tree, accept_Q[None])[0]
  want = {
    (node, token): n * stop_Q[node] * emit_QV[node, token]
    for node in range(4)
    for token in range(v)
    if stop_Q[node] * emit_QV[node, token]
  }
  assert counts == want


@pytest.mark.parametrize("name", ["rejection", "block", "typical"])
def test_invalid_nodes_never_come(name):
  rng = np.random.default_rng(0)
  rows, v = 64, 4
  tree = decode.Tree.chain(3)
  if name != "block":
    tree = decode.Tree.from_rank_paths(
      [(0,), (1,), (0, 0), (1, 0), (1, 1), (1, 0, 0)]
    )
  valid_BQ = rng.random((rows, tree.size)) < 0.6
  # All mass on token 0, which is also what the paddings hold.
  tokens_BQ = jnp.zeros((rows, tree.size), jnp.int32)
  certain_V = jnp.eye(v)[0]
  settings = {"epsilon": 0.3, "delta": 0.6} if name == "typical" else {}
  verifier = verifiers.VERIFIERS[name](**settings)
  conditionals = jax.jit(verifier.judge, static_argnums=0)(
    tree,
    tokens_BQ,
    valid_BQ,
    jnp.broadcast_to(certain_V, (rows, tree.size, v)),
    jnp.broadcast_to(certain_V, (rows, tree.max_depth, v)),
  )
  verdict = sample(
    tree,
    tokens_BQ,
    conditionals.accept_BQ,
    conditionals.emit_BQV,
    jnp.zeros((rows, tree.size)),
    jnp.zeros(rows),
  )
  is_valid_BJ = np.take_along_axis(valid_BQ, np.asarray(verdict.path_BJ), 1)
  assert np.all(is_valid_BJ | (np.asarray(verdict.path_BJ) == 0))
  assert np.all(np.asarray(verdict.tokens_BJ) == 0)
  assert set(np.asarray(verdict.n_tokens_B).tolist()) == {1, 2, 3, 4}


def test_typical_prefers_the_longest_path_then_the_likeliest():
  tree = decode.Tree.from_rank_paths([(0,), (1,), (2,), (1, 0), (2, 0), (2, 1)])
  # Nodes 1 to 3 hold 0, 1, 2; what is behind them 0, 0 and 1.
  tokens_BQ = jnp.array([[9, 0, 1, 2, 0, 0, 1]])
  target_QV = np.full((7, 3), 1 / 3)
  target_QV[0] = 0.4, 0.31, 0.29
  target_QV[2] = 0.5, 0.25, 0.25
  target_QV[3] = 0.46, 0.54, 0

  def path(epsilon, valid_Q=(True,) * 7):
    judge = verifiers.Typical(epsilon, 1).judge
    conditionals = jax.jit(judge, static_argnums=0)(
      tree, tokens_BQ, jnp.array([valid_Q]), jnp.array([target_QV])
    )
    np.testing.assert_array_equal(
      conditionals.emit_BQV[0], target_QV.astype(np.float32)
    )
    return np.flatnonzero(conditionals.accept_BQ[0]).tolist()

  # Node 6 is .29 * .54 = .1566 likely, node 4 .31 * .5 = .155.
  assert path(0.2) == [0, 3, 6]
  assert path(0.3) == [0, 2, 4]  # node 3 is too unlikely now
  assert path(0.2, (True,) * 6 + (False,)) == [0, 2, 4]
  assert path(0.2, (True,) * 4 + (False,) * 3) == [0, 1]
  # exp(-H) is .337 behind the root: only node 1 passes.
  assert path(0.9) == [0, 1]
