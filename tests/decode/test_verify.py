"""Verification and truncation against walks in plain Python."""

import jax.numpy as jnp
import numpy as np
import pytest
from decoding import CHAIN, ROOT, WIDE

from mtpjax import decode
from mtpjax.decode import verify

BUSHY = decode.Tree.from_rank_paths(
  [(0,), (1,), (2,), (0, 0), (0, 1), (2, 0), (2, 1), (0, 1, 0), (2, 0, 0)]
)


def walk(tree, tokens_Q, targets_Q):
  """Goes to the child that is the target while there is one."""
  path = [0]
  while True:
    children = [
      n for n in range(1, tree.size)
      if tree.parents[n] == path[-1] and tokens_Q[n] == targets_Q[path[-1]]
    ]  # fmt: skip
    if not children:
      return path, [targets_Q[node] for node in path]
    path += children


@pytest.mark.parametrize("tree", [ROOT, CHAIN, WIDE, BUSHY])
def test_verify_is_the_walk_down_the_tree(tree):
  rng = np.random.default_rng(0)
  rows = 500
  targets_BQ = rng.integers(0, 4, (rows, tree.size))
  tokens_BQ = np.zeros_like(targets_BQ)
  for b in range(rows):
    # Siblings differ, as top-k candidates do.
    for parent in range(tree.size):
      children = [
        n for n in range(1, tree.size) if tree.parents[n] == parent
      ]  # fmt: skip
      tokens_BQ[b, children] = rng.permutation(4)[: len(children)]
  verdict = verify.verify(tree, jnp.asarray(tokens_BQ), jnp.asarray(targets_BQ))
  lengths = set()
  for b in range(rows):
    path, tokens = walk(tree, tokens_BQ[b], targets_BQ[b])
    n = int(verdict.n_tokens_B[b])
    lengths.add(n)
    assert n == len(path)
    got = np.asarray(verdict.path_BJ[b]).tolist()
    assert got == path + [path[-1]] * (tree.max_depth + 1 - n)
    assert np.asarray(verdict.tokens_BJ[b, :n]).tolist() == tokens
  assert lengths == set(range(1, tree.max_depth + 2))


def cut(block, eos_ids, budget):
  """Takes tokens one by one."""
  taken = []
  for token in block:
    taken.append(token)
    if token in eos_ids:
      return len(taken), "eos"
    if len(taken) == budget:
      return len(taken), "length"
  return len(taken), "running"


def test_truncate_takes_tokens_until_something_ends_the_text():
  rng = np.random.default_rng(1)
  rows, j = 2000, 4
  tokens_BJ = rng.integers(0, 6, (rows, j))
  n_tokens_B = rng.integers(1, j + 1, rows)
  budget_B = rng.integers(1, 7, rows)
  finish_B = rng.choice([0, 0, 0, 1, 2], rows)
  eos_ids_E = np.array([4, 5, -1, -1])
  n_B, after_B = verify.truncate(
    *map(jnp.asarray, (tokens_BJ, n_tokens_B, eos_ids_E, budget_B, finish_B))
  )
  seen = set()
  for b in range(rows):
    if finish_B[b] != verify.RUNNING:
      assert (n_B[b], after_B[b]) == (0, finish_B[b])
      continue
    n, reason = cut(tokens_BJ[b, : n_tokens_B[b]], (4, 5), budget_B[b])
    assert n_B[b] == n
    assert verify.FINISH_REASONS[after_B[b]] == reason
    seen.add((n, reason))
  # EOS and budget at any of the four positions, and neither.
  assert seen >= {
    (n, r) for n in range(1, 5) for r in ("eos", "length", "running")
  }
