"""`match` against a walk in plain Python."""

import jax.numpy as jnp
import numpy as np
import pytest

from mtpjax import decode
from mtpjax.decode import verifiers

ROOT = decode.Tree.root()
CHAIN = decode.Tree.chain(3)
BUSHY = decode.Tree.from_rank_paths(
  [(0,), (1,), (2,), (0, 0), (0, 1), (2, 0), (2, 1), (0, 1, 0), (2, 0, 0)]
)


def walk(tree, tokens_Q, valid_Q, targets_Q):
  """Goes to the child that is the target while there is one."""
  path = [0]
  while True:
    children = [
      n for n in range(1, tree.size)
      if tree.parents[n] == path[-1] and valid_Q[n]
      and tokens_Q[n] == targets_Q[path[-1]]
    ]  # fmt: skip
    if not children:
      return path, [targets_Q[node] for node in path]
    path += children


@pytest.mark.parametrize("padding", [0, -1, None])
@pytest.mark.parametrize("tree", [ROOT, CHAIN, BUSHY])
def test_match_is_the_walk_down_the_tree(tree, padding):
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
  valid_BQ = np.ones(tokens_BQ.shape, bool)
  if padding is not None:
    valid_BQ = rng.random(tokens_BQ.shape) < 0.8
    tokens_BQ = np.where(valid_BQ, tokens_BQ, padding)
  verdict = verifiers.match(
    tree, *map(jnp.asarray, (tokens_BQ, valid_BQ, targets_BQ))
  )
  lengths = set()
  for b in range(rows):
    path, tokens = walk(tree, tokens_BQ[b], valid_BQ[b], targets_BQ[b])
    n = int(verdict.n_tokens_B[b])
    lengths.add(n)
    assert n == len(path)
    got = np.asarray(verdict.path_BJ[b]).tolist()
    assert got == path + [path[-1]] * (tree.max_depth + 1 - n)
    assert np.asarray(verdict.tokens_BJ[b, :n]).tolist() == tokens
  assert lengths == set(range(1, tree.max_depth + 2))


def test_a_padding_of_token_0_is_no_draft():
  # Medusa's slip: where 0 is the target everywhere, its paddings stood.
  zeros_BQ = jnp.zeros((2, BUSHY.size), jnp.int32)
  valid_BQ = jnp.zeros(zeros_BQ.shape, bool).at[1, jnp.array([1, 4])].set(True)
  verdict = verifiers.match(BUSHY, zeros_BQ, valid_BQ, zeros_BQ)
  assert verdict.n_tokens_B.tolist() == [1, 3]
  assert verdict.path_BJ.tolist() == [[0, 0, 0, 0], [0, 1, 4, 4]]
