"""Trees: what is derived from the parents, and what is refused."""

import itertools

import numpy as np
import pytest
from decoding import BLOCK, CHAIN, ROOT, WIDE, multi_token_model

from mtpjax import config as config_lib
from mtpjax import decode
from mtpjax.errors import UserError


def random_tree(seed):
  """A tree of up to 30 nodes, each with siblings of different ranks."""
  rng = np.random.default_rng(seed)
  paths = [()]
  for _ in range(rng.integers(0, 30)):
    parent = paths[rng.integers(len(paths))]
    free = [r for r in range(6) if (*parent, r) not in paths]
    paths.append((*parent, int(rng.choice(free))))
  return decode.Tree.from_rank_paths(paths[1:]), set(paths)


def rank_path(tree, node):
  """Walks up to the root."""
  ranks = []
  while node:
    ranks.append(tree.ranks[node])
    node = tree.parents[node]
  return tuple(reversed(ranks))


@pytest.mark.parametrize("seed", range(20))
def test_everything_follows_from_the_parents(seed):
  tree, paths = random_tree(seed)
  q = tree.size
  by_node = [rank_path(tree, node) for node in range(q)]
  assert len(by_node) == len(paths) and set(by_node) == paths
  assert all(tree.parents[n] < n for n in range(1, q))
  assert tree.depth_Q.tolist() == [len(path) for path in by_node]
  assert tree.depth_Q.tolist() == sorted(tree.depth_Q)
  assert tree.max_depth == max(map(len, paths))
  assert tree.width == 1 + max(max(p, default=0) for p in paths)
  for a, b in itertools.product(range(q), range(q)):
    is_prefix = by_node[a][: len(by_node[b])] == by_node[b]
    assert tree.ancestors_QQ[a, b] == is_prefix
  assert tree.paths_QJ.shape == (q, tree.max_depth + 1)
  for node in range(q):
    want = [by_node.index(by_node[node][:n]) for n in range(len(by_node[node]))]
    padding = [node] * (tree.max_depth + 1 - len(want))
    assert tree.paths_QJ[node].tolist() == want + padding


def test_known_trees():
  assert (ROOT.size, ROOT.max_depth, ROOT.width) == (1, 0, 1)
  assert CHAIN.parents == (0, 0, 1, 2)
  assert CHAIN.ancestors_QQ.tolist() == np.tri(4, dtype=bool).tolist()
  assert decode.Tree.chain(0) == ROOT
  assert decode.Tree.from_rank_paths([(0, 0, 0), (0,), (0, 0)]) == CHAIN
  # The example in the documentation of the module.
  tree = decode.Tree.from_rank_paths([(0,), (1,), (0, 0)])
  assert (tree.parents, tree.ranks) == ((0, 0, 0, 1), (0, 0, 1, 0))
  assert tree.depth_Q.tolist() == [0, 1, 1, 2]
  assert tree.paths_QJ.tolist() == [[0, 0, 0], [0, 1, 1], [0, 2, 2], [0, 1, 3]]
  # Equal trees must share a compiled program.
  assert hash(WIDE) == hash(decode.Tree(WIDE.parents, WIDE.ranks))


def refusal(make):
  with pytest.raises(UserError) as error:
    make()
  text = str(error.value)
  assert "\n" not in text and text.startswith("tree: ")
  return text


def test_refused_trees_say_what_is_wrong():
  from_paths = decode.Tree.from_rank_paths
  assert "(0, 1) occurs twice" in refusal(
    lambda: from_paths([(0,), (0, 1), (0, 1)])
  )
  assert "(0, 1) needs (0,)" in refusal(lambda: from_paths([(1,), (0, 1)]))
  assert "node 1 has two children of rank 0" in refusal(
    lambda: decode.Tree((0, 0, 1, 1), (0, 0, 0, 0))
  )
  assert "node 1 comes before its parent 2" in refusal(
    lambda: decode.Tree((0, 2, 0), (0, 0, 0))
  )
  refusal(lambda: decode.Tree((1, 0), (0, 0)))
  refusal(lambda: decode.Tree((0, 0), (0,)))
  refusal(lambda: decode.Tree((), ()))
  assert "rank -1" in refusal(lambda: from_paths([(-1,)]))
  assert "do not begin" in refusal(lambda: decode.Tree((1,) * 999, (0,) * 999))
  wide = from_paths([(rank,) for rank in range(12)])
  assert "vocabulary of 11" in refusal(
    lambda: decode.Spec(multi_token_model(), wide)
  )


@pytest.mark.parametrize(
  "make",
  [
    lambda n: decode.Tree((0,) * n, tuple(range(n))),
    lambda n: decode.Tree.chain(n - 1),
    lambda n: decode.Tree.from_rank_paths([(i,) for i in range(n - 1)]),
    lambda n: decode.Tree.from_rank_paths([(0,) * i for i in range(1, n)]),
    lambda n: decode.Tree.from_branching([n - 1]),
  ],
)
def test_a_tree_of_too_many_nodes_is_refused_however_it_is_made(make):
  assert make(4096).size == 4096
  for n in (4097, 10_000):
    text = refusal(lambda: make(n))  # noqa: B023
    assert str(n) in text and "use at most 4096" in text


def test_much_too_large_a_tree_costs_no_time():
  assert "10000000000001 nodes" in refusal(
    lambda: decode.Tree.chain(10_000_000_000_000)
  )
  # One path, which would need as many others.
  text = refusal(lambda: decode.Tree.from_rank_paths([(0,) * 1_000_000]))
  assert "1000001 nodes" in text
  # The second of two equal siblings is the last of all nodes.
  n = 4096
  ranks = (*range(n - 1), n - 2)
  assert f"two children of rank {n - 2}" in refusal(
    lambda: decode.Tree((0,) * n, ranks)
  )
  deep = tuple(range(100))
  text = refusal(lambda: decode.Tree.from_rank_paths([deep]))
  assert "(0, 1, 2, 3, 4, 5, ...) needs" in text and len(text) < 100


@pytest.mark.parametrize(
  "offsets, longest",
  [((1, 2, 3, 4), 3), ((1, 2, 4), 1), ((1, 3), 0), ((1,), 0)],
)
def test_no_tree_is_deeper_than_the_unbroken_run_of_heads(offsets, longest):
  model = multi_token_model(config_lib.Heads(offsets=offsets, matched=False))
  decode.Spec(model, decode.Tree.chain(longest))
  text = refusal(lambda: decode.Spec(model, decode.Tree.chain(longest + 1)))
  assert f"{longest + 1} drafts deep" in text and f"only {longest}" in text
  assert BLOCK.chain_length == 3
