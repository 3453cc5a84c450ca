"""Trees and speeds from recorded ranks, against slower ways to the same."""

import itertools
import json

import numpy as np
import pytest

from mtpjax import budget
from mtpjax.budget import levels
from mtpjax.decode import tree_files
from mtpjax.decode.tree import Tree
from mtpjax.errors import UserError

FLAT = levels.PassCosts(((1, 0.01), (64, 0.01)))
LINEAR = levels.PassCosts(((1, 0.01), (64, 0.64)))


def skewed_ranks(seed, depths=3, lengths=(300, 40, 200)):
  """Ranks that fall off, and a first miss that spoils the rest."""
  rng = np.random.default_rng(seed)
  texts = []
  for length in lengths:
    ranks_NM = rng.geometric(0.5, (length, depths)) - 1
    spoilt_NM = np.cumsum(ranks_NM > 0, axis=1) - (ranks_NM > 0) > 0
    ranks_NM += spoilt_NM * rng.integers(0, 6, ranks_NM.shape)
    ranks_NM[ranks_NM > 5] = budget.MISS + 7
    for depth in range(depths):  # the text ends
      ranks_NM[length - depth - 1 :, depth] = -1
    texts.append(ranks_NM)
  return texts


def independent(marginals, n, seed=0):
  """One text with independent depths."""
  rng = np.random.default_rng(seed)
  columns = [
    rng.choice([*range(len(p)), budget.MISS], n, p=[*p, 1 - sum(p)])
    for p in marginals
  ]
  return [np.stack(columns, axis=1)]


def known(ranks):
  return np.concatenate([text[(text >= 0).all(axis=1)] for text in ranks])


def share(path, ranks):
  """Share of the positions at which a path is right."""
  return (known(ranks)[:, : len(path)] == path).all(axis=1).mean()


def all_trees(nodes, depths, width):
  """Every set of paths that is closed and whose siblings have no gaps."""
  trees = {frozenset()}
  for _ in range(nodes - 1):
    larger = set()
    for paths in trees:
      for parent in {(), *paths}:
        rank = sum(p[:-1] == parent for p in paths)
        if len(parent) < depths and rank < width:
          larger.add(paths | {(*parent, rank)})
    trees = larger
  return trees


@pytest.mark.parametrize("seed", range(5))
def test_reach_is_the_share_of_right_paths(seed):
  ranks = skewed_ranks(seed)
  for tree in (Tree.root(), Tree.chain(3), Tree.from_branching((4, 3, 2))):
    want = [share(path, ranks) for path in ((), *tree.rank_paths)]
    np.testing.assert_allclose(budget.reach(tree, ranks), want, atol=1e-12)


@pytest.mark.parametrize("seed", range(8))
def test_small_trees_are_the_best_of_all(seed):
  """Greedy is optimal where likelier ranks are right more often."""
  rng = np.random.default_rng(seed)
  marginals = [sorted(rng.dirichlet([1, 1, 1, 1])[:3])[::-1] for _ in range(3)]
  ranks = independent(marginals, 20_000, seed)
  trees = budget.grow(ranks, 4, max_width=3, smoothing=0)
  for nodes, tree in enumerate(trees, start=1):
    assert tree.size == nodes
    best = max(
      sum(share(path, ranks) for path in paths)
      for paths in all_trees(nodes, 3, 3)
    )
    # A pair of ranks may be in the wrong order by as much as chance allows.
    assert budget.reach(tree, ranks).sum() - 1 >= best - 0.005


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("smoothing", [0, 1, 20])
def test_trees_are_nested_and_without_gaps(seed, smoothing):
  ranks = skewed_ranks(seed)
  trees = budget.grow(ranks, 60, max_width=5, smoothing=smoothing)
  assert [tree.size for tree in trees] == list(range(1, 61))
  for smaller, larger in itertools.pairwise(trees):
    paths = set(larger.rank_paths)
    assert set(smaller.rank_paths) < paths
    assert all((*p[:-1], p[-1] - 1) in paths for p in paths if p[-1])
    assert all(p[:-1] in paths for p in paths if p[1:])
    assert larger.width <= 5 and larger.max_depth <= 3
  # Positions have no order, and equal input gives equal trees.
  assert budget.grow([known(ranks)[::-1]], 60, 5, smoothing) == trees


def test_growth_ends_when_nothing_is_left():
  ranks = skewed_ranks(0, depths=2)
  trees = budget.grow(ranks, 100, max_width=3)
  assert trees[-1] == Tree.from_branching((3, 3)) and len(trees) == 13
  assert len(budget.grow(ranks, 1)) == 1
  (*_, largest) = budget.grow(skewed_ranks(0, depths=1), 10**6, max_width=99)
  assert largest == Tree.from_branching((budget.MISS,))


def test_unseen_paths_are_ranked_by_the_accuracy_of_their_depth():
  # Rank 1 of depth 1 was right once, and then nothing of depth 2 was.
  ranks = np.array([[0, 0]] * 60 + [[0, 1]] * 39 + [[1, 64]])
  tree = budget.grow([ranks], 7, 3)[-1]
  assert tree == Tree.from_branching((2, 2))


def test_paths_count_and_not_products_of_accuracies():
  # Behind a first draft of rank 1 no second draft is ever right.
  ranks = [
    np.array(
      [[0, 0]] * 33 + [[0, 1]] * 21 + [[0, 64]] * 6 + [[1, 64]] * 40
    )
  ]  # fmt: skip
  tree = budget.grow(ranks, 5)[-1]
  shallow = [(0,), (1,), (0, 0)]
  by_products = Tree.from_rank_paths([*shallow, (1, 0)])
  accuracy = [np.bincount(column)[:2] / 100 for column in ranks[0].T]
  assert accuracy[0][1] * accuracy[1][0] > accuracy[0][0] * accuracy[1][1]
  assert tree == Tree.from_rank_paths([*shallow, (0, 1)])
  gain = (
    budget.reach(tree, ranks).sum() - budget.reach(by_products, ranks).sum()
  )
  assert gain == pytest.approx(0.21)
  shuffled = [np.random.default_rng(0).permutation(ranks[0])]
  assert budget.predicted(tree, shuffled) > budget.predicted(
    by_products, shuffled
  )


@pytest.mark.parametrize("seed", range(6))
def test_tokens_per_pass_is_what_decoding_would_do(seed):
  """Decodes texts of tokens with drafts of tokens."""
  rng = np.random.default_rng(seed)
  vocab, depths = 6, 3
  texts, drafts, ranks = [], [], []
  for length in (50, 3, 171, 4):
    text = rng.integers(vocab, size=length)
    candidates = rng.permuted(
      np.tile(np.arange(vocab), (length, depths, 1)), axis=-1
    )[..., :4]
    ranks_NM = np.full((length, depths), -1)
    for t, d in itertools.product(range(length), range(depths)):
      if t + d + 1 < length:
        if rng.random() < 0.6:  # a good draft
          candidates[t, d, 0] = text[t + d + 1]
          candidates[t, d, 1:] = (text[t + d + 1] + np.arange(1, 4)) % vocab
        found = candidates[t, d] == text[t + d + 1]
        ranks_NM[t, d] = np.argmax(found) if found.any() else budget.MISS
    texts.append(text)
    drafts.append(candidates)
    ranks.append(ranks_NM)
  trees = [
    Tree.root(),
    Tree.chain(1),
    Tree.chain(3),
    Tree.from_branching((3, 2, 1)),
    tree_files.parse_tree("4,4,4"),
    *budget.grow(ranks, 9, 4),
  ]
  for tree in trees:
    passes = tokens = 0
    for text, candidates in zip(texts, drafts, strict=True):
      at = 0
      while at + depths < len(text):
        stands = {0}
        for node in range(1, tree.size):
          depth = tree.depth_Q[node]
          draft = candidates[at, depth - 1, tree.ranks[node]]
          if tree.parents[node] in stands and draft == text[at + depth]:
            stands.add(node)
        committed = 1 + max(int(tree.depth_Q[node]) for node in stands)
        passes, tokens, at = passes + 1, tokens + committed, at + committed
    got = budget.predicted(tree, ranks)
    assert got == pytest.approx(tokens / passes)
  assert budget.predicted(Tree.root(), ranks) == 1


def test_the_ends_of_texts_are_fair():
  """Many short texts tell the same as a long one."""
  (long,) = independent([(0.7, 0.1), (0.6, 0.1), (0.6, 0.1)], 60_000)
  short = []
  for text in np.split(long, 3000):
    text = text.copy()
    for depth in range(3):
      text[20 - depth - 1 :, depth] = -1
    short.append(text)
  for tree in (Tree.chain(3), Tree.from_branching((2, 2, 1))):
    want = budget.reach(tree, [long]).sum()
    assert budget.predicted(tree, [long]) == pytest.approx(want, rel=0.02)
    assert budget.predicted(tree, short) == pytest.approx(want, rel=0.02)


def test_costs_are_interpolated_and_never_fall():
  costs = levels.PassCosts(((8, 3.0), (1, 1.0), (4, 2.0)))
  sizes = (1, 2, 4, 6, 8, 16)
  want = (1.0, 4 / 3, 2.0, 2.5, 3.0, 6.0)
  np.testing.assert_allclose([costs.secs(n) for n in sizes], want)
  # Of a size measured often the median counts.
  often = levels.PassCosts(((1, 1.0), (1, 1.2), (1, 90.0), (2, 1.2), (2, 1.4)))
  assert (often.secs(1), often.secs(2)) == (1.2, pytest.approx(1.3))
  # The pair that falls is pooled; its neighbours stay.
  noisy = levels.PassCosts(((1, 1.0), (2, 1.4), (4, 1.2), (8, 2.0)))
  assert [noisy.secs(n) for n in (1, 2, 3, 4, 8)] == pytest.approx(
    [1, 1.3, 1.3, 1.3, 2]
  )
  rng = np.random.default_rng(0)
  true = {n: 1 + 0.02 * n for n in range(1, 65)}
  measured = {n: t * rng.lognormal(0, 0.1) for n, t in true.items()}
  rough = levels.PassCosts(tuple(measured.items()))
  smooth = [rough.secs(n) for n in true]
  assert smooth == sorted(smooth)
  error = np.abs(np.subtract(smooth, list(true.values())))
  assert error.mean() < 0.6 * np.mean(
    [abs(measured[n] - true[n]) for n in true]
  )


def test_free_passes_take_all_and_dear_ones_none():
  ranks = skewed_ranks(1)
  trees = budget.grow(ranks, 32)
  free = budget.choose(trees, ranks, FLAT)
  most = max(budget.predicted(tree, ranks) for tree in trees)
  assert free.tokens_per_pass == most > 2
  assert free.speed_over_plain == pytest.approx(most)
  assert free.tokens_per_sec == pytest.approx(most / 0.01)
  assert free.reason.startswith(f"{free.tree.size} nodes, 3 deep: ")
  dear = budget.choose(trees, ranks, LINEAR)
  assert dear.tree == Tree.root()
  assert (dear.tokens_per_pass, dear.speed_over_plain) == (1, 1)
  assert dear.tokens_per_sec == pytest.approx(100)
  assert dear.reason.startswith("plain decoding: the best tree (2 nodes, 1.")
  assert dear.reason.endswith("x: a pass over 2 nodes costs 2.00 plain passes")


def test_a_choice_is_the_best_of_the_curve_and_the_chains():
  ranks = skewed_ranks(2)
  trees = budget.grow(ranks, 24)
  costs = levels.PassCosts(((1, 1.0), (4, 1.1), (8, 1.5), (24, 3.0)))
  rows = budget.curve(trees, ranks, costs)
  assert [row["nodes"] for row in rows] == list(range(1, 25))
  assert rows[0]["speed_over_plain"] == 1
  for row in rows:
    speed = row["tokens_per_pass"] / row["pass_secs"]
    assert row["tokens_per_sec"] == pytest.approx(speed)
    assert row["speed_over_plain"] == pytest.approx(speed * costs.secs(1))
  json.dumps(rows)
  choice = budget.choose(trees, ranks, costs)
  chains = [
    budget.predicted(Tree.chain(m), ranks) / costs.secs(m + 1)
    for m in (1, 2, 3)
  ]
  best = max(*chains, *(row["tokens_per_sec"] for row in rows))
  assert choice.tokens_per_sec == pytest.approx(best)
  assert 1 < choice.tree.size < 24
  # Chains join without being asked.
  spine = independent([(0.9,), (0.9,), (0.9,)], 2000)
  assert budget.choose([], spine, FLAT).tree == Tree.chain(3)


def test_a_gain_within_the_margin_is_no_gain():
  ranks = independent([(0.5,)], 5000)
  speed = budget.predicted(Tree.chain(1), ranks)
  costs = levels.PassCosts(((1, 1.0), (2, speed / 1.012)))
  assert budget.choose([], ranks, costs, margin=0.01).tree == Tree.chain(1)
  choice = budget.choose([], ranks, costs)
  assert choice.tree == Tree.root()
  assert "would reach only 1.01x of the 1.02x asked for" in choice.reason


def test_levels_to_switch_between():
  ranks = skewed_ranks(3)
  trees = budget.grow(ranks, 32)
  costs = levels.PassCosts(((1, 1.0), (6, 1.1), (16, 1.25), (64, 2.5)))
  choice = budget.choose(trees, ranks, costs)
  plain, small, chosen = budget.levels_of(choice, trees, ranks, costs)
  assert plain == levels.Level(Tree.root(), 1.0, 1.0)
  assert chosen.tree == choice.tree
  assert chosen.tokens_per_sec == choice.tokens_per_sec
  assert chosen.tree.size / 4 <= small.tree.size <= chosen.tree.size / 2
  assert plain.tokens_per_sec < small.tokens_per_sec < chosen.tokens_per_sec

  # There is a share of the predicted gain at which it beats both.
  def fastest(share):
    speeds = [
      (1 + share * (level.tokens_per_pass - 1)) / level.pass_secs
      for level in (plain, small, chosen)
    ]
    return int(np.argmax(speeds))

  order = [fastest(share) for share in np.linspace(0, 1, 201)]
  assert order == sorted(order) and set(order) == {0, 1, 2}
  # Free passes: never a reason to draft less.
  free = budget.choose(trees, ranks, FLAT)
  assert len(budget.levels_of(free, trees, ranks, FLAT)) == 2
  dear = budget.choose(trees, ranks, LINEAR)
  (only,) = budget.levels_of(dear, trees, ranks, LINEAR)
  assert only.tree == Tree.root()


def test_records_go_to_json_and_back():
  ranks = skewed_ranks(4)
  trees = budget.grow(ranks, 12)
  costs = levels.PassCosts(((1, 0.011), (4, 0.0123), (16, 0.5)))
  choice = budget.choose(trees, ranks, costs)
  for record in (costs, choice, *budget.levels_of(choice, trees, ranks, costs)):
    text = json.dumps(record.to_dict(), allow_nan=False)
    back = type(record).from_dict(json.loads(text))
    assert back == record and hash(back) == hash(record)


def points(values):
  return {"points": values, "head_secs": 0.1}


LEVEL = {"tree": {"parents": [0], "ranks": [0]}, "tokens_per_pass": 1.0,
         "pass_secs": 0.1}  # fmt: skip


@pytest.mark.parametrize(
  "cls, values, reason",
  [
    ("Level", None, "needs tree, tokens_per_pass, pass_secs and has None"),
    ("Level", {}, "has []"),
    ("Level", LEVEL | {"more": 1}, "has ['more', 'pass_secs', 'tokens_per_pa"),
    ("Level", LEVEL | {"pass_secs": 0}, "Level.pass_secs is 0, which"),
    ("Level", LEVEL | {"pass_secs": True}, "Level.pass_secs is True"),
    ("Level", LEVEL | {"pass_secs": float("nan")}, "Level.pass_secs is nan"),
    ("Level", LEVEL | {"tokens_per_pass": 0.9}, "tokens_per_pass is 0.9"),
    ("Level", LEVEL | {"tokens_per_pass": "1"}, "tokens_per_pass is '1'"),
    ("Level", LEVEL | {"tree": [[0]]}, "Level.tree: [[0]] are not parents"),
    ("Level", LEVEL | {"tree": {"parents": [0, 1], "ranks": [0, 0]}},
     "Level.tree: node 1 comes before"),
    ("Choice", LEVEL, "Choice needs"),
    ("Choice", LEVEL | {"tokens_per_sec": 10.0, "speed_over_plain": 1.0,
                        "reason": 3}, "Choice.reason is 3"),
    ("PassCosts", points([[1, 1.0], [2]]), "PassCosts.points is [[1,"),
    ("PassCosts", points([[1.5, 1.0]]), "PassCosts.points is [[1.5"),
    ("PassCosts", points(3), "PassCosts.points is 3"),
    ("PassCosts", points([]), "a plain pass"),
    ("PassCosts", points([[2, 1.0]]), "over [2] nodes were measured"),
    ("PassCosts", points([[1, -1.0]]), "over 1 nodes took -1.0 seconds"),
    ("PassCosts", points([[0, 1.0]]), "over 0 nodes took"),
  ],
)  # fmt: skip
def test_damaged_records_say_what_is_wrong(cls, values, reason):
  with pytest.raises(UserError) as error:
    getattr(levels, cls).from_dict(values)
  text = str(error.value)
  assert text.startswith("calibration: ") and "\n" not in text
  assert reason in text and len(text) < 300


@pytest.mark.parametrize(
  "ranks, reason",
  [
    ([], "no texts"),
    ([np.zeros((3, 2), int), np.zeros((3, 3), int)], "different depths"),
    ([np.full((3, 2), -1)], "longer than the 2 tokens drafted"),
    ([np.zeros((0, 2), int)], "longer than the 2 tokens drafted"),
  ],
)
def test_recordings_of_nothing_are_refused(ranks, reason):
  for use in (
    lambda: budget.grow(ranks, 4),
    lambda: budget.predicted(Tree.root(), ranks),
    lambda: budget.reach(Tree.root(), ranks),
    lambda: budget.choose([], ranks, FLAT),
  ):
    with pytest.raises(UserError, match="^calibration: ") as error:
      use()
    assert reason in str(error.value)
  with pytest.raises(UserError, match="^tree: it is 4 drafts deep"):
    budget.reach(Tree.chain(4), skewed_ranks(0))


def test_heads_cost_by_the_depth_of_a_tree():
  costs = levels.PassCosts(((1, 1.0), (8, 2.0)), head_secs=0.25)
  assert costs.secs(1) == 1 and costs.secs(8, 3) == pytest.approx(2.75)
  ranks = independent([(0.8, 0.05), (0.7, 0.1)], 2000)
  deep, flat = Tree.chain(2), Tree.from_branching((2,))
  rows = budget.curve([deep, flat], ranks, costs)
  assert rows[0]["pass_secs"] - rows[1]["pass_secs"] == pytest.approx(0.25)
  assert levels.PassCosts.from_dict(costs.to_dict()) == costs


def test_nothing_larger_than_what_was_measured_is_chosen():
  ranks = independent([(0.9, 0.05), (0.9, 0.1), (0.9, 0.1)], 2000)
  for largest in (1, 2, 3):
    costs = levels.PassCosts(tuple((n, 1.0) for n in range(1, largest + 1)))
    choice = budget.choose(budget.grow(ranks, 8), ranks, costs)
    assert choice.tree.size == largest
