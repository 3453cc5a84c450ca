"""Trees as text: named ones, branchings, files, and what is refused."""

import collections
import json

import numpy as np
import pytest

from mtpjax.decode import tree_files
from mtpjax.decode.tree import Tree
from mtpjax.errors import UserError

PATHS = [[0], [1], [0, 0], [1, 2], [0, 0, 5]]
TREE = Tree.from_rank_paths(map(tuple, PATHS))
MEDUSA = tree_files.parse_tree("medusa-63")


def random_tree(seed):
  """A tree whose nodes are not sorted by depth."""
  rng = np.random.default_rng(seed)
  parents, ranks = [0], [0]
  for node in range(1, 25):
    parent = int(rng.integers(node))
    taken = zip(parents[1:], ranks[1:], strict=True)
    parents.append(parent)
    ranks.append(sum(p == parent for p, _ in taken))
  return Tree(tuple(parents), tuple(ranks))


def test_the_published_choices_of_medusa():
  paths = MEDUSA.rank_paths
  assert len(set(paths)) == len(paths) == 63
  per_depth = collections.Counter(map(len, paths))
  assert per_depth == {1: 10, 2: 28, 3: 23, 4: 2}
  # The first and the last of the list as published, and two from its middle.
  assert {(0,), (0, 7, 0), (0, 0, 0, 1), (1, 0, 1)} < set(paths)
  assert max(map(max, paths)) == 9 and MEDUSA.width == 10
  leaves = set(range(MEDUSA.size)) - set(MEDUSA.parents)
  assert len(leaves) == 42
  # Closed, and siblings without gaps.
  known = {(), *paths}
  assert all(path[:-1] in known for path in paths)
  assert all((*p[:-1], p[-1] - 1) in known for p in paths if p[-1])


@pytest.mark.parametrize("branching", [(4, 2, 1), (1, 1, 1), (3,), (2, 5), ()])
def test_branchings(branching):
  tree = Tree.from_branching(branching)
  per_depth = np.bincount(tree.depth_Q)
  assert per_depth.tolist() == np.cumprod([1, *branching]).tolist()
  for node in range(tree.size):
    depth = tree.depth_Q[node]
    ranks = [tree.ranks[k] for k in range(1, tree.size)
             if tree.parents[k] == node]  # fmt: skip
    want = branching[depth] if depth < len(branching) else 0
    assert ranks == list(range(want))
  if branching:
    assert tree_files.parse_tree(", ".join(map(str, branching))) == tree
  assert Tree.from_branching((1,) * 3) == Tree.chain(3)


@pytest.mark.parametrize("seed", range(10))
def test_rank_paths_and_dicts_lead_back(seed):
  tree = random_tree(seed)
  paths = tree.rank_paths
  assert len(paths) == tree.size - 1
  ordered = Tree.from_rank_paths(paths)
  assert set(ordered.rank_paths) == set(paths)
  assert Tree.from_rank_paths(ordered.rank_paths) == ordered
  assert [len(path) for path in paths] == tree.depth_Q[1:].tolist()
  values = json.loads(json.dumps(tree_files.tree_to_dict(tree)))
  assert tree_files.tree_from_dict(values) == tree


@pytest.mark.parametrize("seed", range(10))
def test_a_cut_keeps_what_is_shallow(seed):
  tree = random_tree(seed)
  for depth in range(tree.max_depth + 2):
    cut = tree.cut(depth)
    kept = [path for path in tree.rank_paths if len(path) <= depth]
    assert list(cut.rank_paths) == kept
  assert tree.cut(tree.max_depth) == tree
  assert tree.cut(0) == Tree.root()
  with pytest.raises(UserError, match="^tree: depth -1"):
    tree.cut(-1)


def write(tmp_path, name, text):
  path = tmp_path / name
  path.write_text(text)
  return path


@pytest.mark.parametrize(
  "name, text",
  [
    ("tree.json", json.dumps(PATHS)),
    ("tree.json", json.dumps(tree_files.tree_to_dict(TREE))),
    ("tree", json.dumps(PATHS)),
    ("choices.py", f"mine = {PATHS}\n"),
    ("choices.py", f"mine: list = {PATHS}\n"),
    ("choices.py", "mine = [(0,), (1,), (0, 0), (1, 2), (0, 0, 5)]"),
    # What is no literal list is passed over.
    ("choices.py", f'"""Doc."""\nimport os\nn = 3\nx = f(n)\nmine = {PATHS}'),
  ],
)
def test_files_are_read(tmp_path, name, text):
  path = write(tmp_path, name, text)
  assert tree_files.read_tree(path) == TREE
  assert tree_files.parse_tree(str(path)) == TREE


@pytest.mark.parametrize("name", ["tree.json", "choices.py"])
def test_a_byte_order_mark_is_none_of_a_tree(tmp_path, name):
  text = json.dumps(PATHS) if name == "tree.json" else f"mine = {PATHS}\n"
  path = tmp_path / name
  path.write_text(text, encoding="utf-8-sig")
  assert tree_files.read_tree(path) == TREE


def test_one_of_several_lists_is_chosen_by_name(tmp_path):
  path = write(tmp_path, "choices.py", f"one = [[0]]\ntwo = {PATHS}\n")
  assert tree_files.parse_tree(f"{path}:two") == TREE
  assert tree_files.parse_tree(f"{path}:one") == Tree.chain(1)
  # A colon of the file's own stays.
  path = write(tmp_path, "a.py:b", json.dumps(PATHS))
  assert tree_files.read_tree(path) == TREE


def test_a_python_file_is_not_executed(tmp_path):
  path = write(
    tmp_path,
    "choices.py",
    f"mine = {PATHS}\nraise SystemExit\nother = [print('x')]\n1 / 0\n",
  )
  assert tree_files.read_tree(path) == TREE


def refusal(make):
  with pytest.raises(UserError) as error:
    make()
  text = str(error.value)
  assert text.startswith("tree: ") and "\n" not in text and len(text) < 400
  assert text.count("tree: ") == 1
  return text


@pytest.mark.parametrize(
  "name, text, reason",
  [
    ("t.json", "[[0], [1]", "line 1 is not JSON"),
    ("t.json", "[[0],\n[1}]", "line 2 is not JSON"),
    ("t.json", "", "is not JSON"),
    ("t.json", "[" * 100_000, "is not JSON"),
    ("t.json", f"[[{'9' * 5000}]]", "is not JSON"),
    ("t.json", "[]", "list of paths is empty"),
    ("t.json", "3", "3 is no list of paths"),
    ("t.json", "[0, 1]", "0 is no list of whole numbers"),
    ("t.json", "[[0.5]]", "[0.5] is no list of whole numbers"),
    ("t.json", "[[true]]", "[True] is no list of whole numbers"),
    ("t.json", '[["a"]]', "['a'] is no list of whole numbers"),
    ("t.json", "[[]]", "[] is no path"),
    ("t.json", "[[0], [-1]]", "rank -1 must be 0 or more"),
    ("t.json", "[[0], [0]]", "(0,) occurs twice"),
    ("t.json", "[[0], [1, 0]]", "(1, 0) needs (1,)"),
    ("t.json", '{"parents": [0]}', "['parents'] are not parents and ranks"),
    ("t.json", '{"parents": [], "ranks": []}', "do not begin at a root"),
    ("t.json", '{"parents": [0, "a"], "ranks": [0, 0]}', "[0, 'a'] is no list"),
    ("t.json", '{"parents": [0, 1], "ranks": [0, 0]}', "before its parent 1"),
    ("t.json", json.dumps([[n] for n in range(4096)]), "4097 nodes are too"),
    (
      "t.json",
      json.dumps({"parents": [0] * 4097, "ranks": list(range(4097))}),
      "4097 nodes are too many; use at most 4096",
    ),
    ("t.py", f"a = {[[0] * 5000]}", "5001 nodes are too many"),
    ("t.py", "a = [[0]\n", "line 1 is not Python"),
    ("t.py", "a = 3\nb = f()\n", "assigns no list"),
    ("t.py", "", "assigns no list"),
    ("t.py", "a = []", "list of paths is empty"),
    ("t.py", "a = [[0]]\nb = [[0]]", "lists a, b; choose one"),
    ("t.py", "a = [[0], ['x']]", "['x'] is no list of whole numbers"),
  ],
)
def test_refused_files_say_what_is_wrong(tmp_path, name, text, reason):
  path = write(tmp_path, name, text)
  message = refusal(lambda: tree_files.read_tree(path))
  assert str(path) in message and reason in message


def test_a_file_nested_as_deep_as_json_goes_is_one_line(tmp_path):
  for depth in range(900, 1001):  # near the limit of Python's recursion
    path = write(tmp_path, "t.json", "[" * depth + "0" + "]" * depth)
    refusal(lambda: tree_files.read_tree(path))  # noqa: B023


def test_refused_names_say_what_is_wrong(tmp_path):
  parse = tree_files.parse_tree
  assert "none.json does not exist" in refusal(lambda: parse("none.json"))
  assert "give medusa-63" in refusal(lambda: parse("medusa-64"))
  assert "nothing is named" in refusal(lambda: parse(" "))
  assert "branching 0" in refusal(lambda: parse("4,0"))
  assert "branching -1" in refusal(lambda: parse("-1"))
  assert "branching 5000 at depth 2 makes 10003 nodes; use at most 4096" in (
    refusal(lambda: parse("2,5000"))
  )
  assert "cannot be read" in refusal(lambda: parse(str(tmp_path)))
  path = write(tmp_path, "t.py", "a = [[0]]\nb = [[0]]")
  assert "no list 'c'; it has a, b" in refusal(lambda: parse(f"{path}:c"))
  (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
  binary = str(tmp_path / "binary.json")
  assert "it is not text" in refusal(lambda: parse(binary))
  values = {"parents": [0]}
  assert "not parents" in refusal(lambda: tree_files.tree_from_dict(values))
