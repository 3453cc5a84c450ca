"""Trees as text: named ones, branchings, and files of rank paths."""

import ast
import json
import pathlib
import re
from typing import Any

from mtpjax import config as config_lib
from mtpjax.decode.tree import Tree
from mtpjax.errors import UserError

# The choices published with Medusa for a model of 7B as mc_sim_7b_63; one
# digit per rank, so 013 is the path (0, 1, 3).
_MEDUSA_63 = """
  0 1 2 3 4 5 6 7 8 9
  00 01 02 03 04 05 06 07 08 09 10 11 12 13 14 15 16
  20 21 22 30 31 40 50 60 70 80 90
  000 001 002 003 004 005 006 007 008 009 010 011 012
  020 021 030 040 050 060 070 100 101 200
  0000 0001
"""
_FORMS = (
  "a JSON list of rank paths such as [[0], [1], [0, 0]], a JSON object of "
  "parents and ranks, or a Python file of such lists"
)


def parse_tree(text: str) -> Tree:
  """Returns the tree a user names.

  Args:
    text: "medusa-63", a branching per depth such as "4,2,1", or the path of a
      file as in `read_tree`.

  Returns:
    The tree.

  Raises:
    UserError: none of the three, or the file is refused.
  """
  text = text.strip()
  if text == "medusa-63":
    return Tree.from_rank_paths(
      tuple(map(int, word)) for word in _MEDUSA_63.split()
    )
  if re.fullmatch(r"[-+]?\d{1,6}(\s*,\s*[-+]?\d{1,6})*", text):
    return Tree.from_branching(map(int, text.split(",")))
  if not text:
    raise UserError(
      "tree: nothing is named; give medusa-63, a branching per depth such as "
      "4,2,1, or a file"
    )
  return read_tree(text)


def read_tree(path: str | pathlib.Path) -> Tree:
  """Reads a tree from a file.

  Python files, the format of Medusa's published choices, are parsed and never
  executed: they count as assignments of literal lists, and all else in them
  is passed over.

  Args:
    path: JSON (a list of rank paths, or {"parents": [...], "ranks": [...]})
      or a file that ends in .py; PATH:NAME selects one of its lists.

  Returns:
    The tree.

  Raises:
    UserError: the file is missing or is not a tree.
  """
  file, name = _split_name(str(path))
  try:
    text = file.read_text("utf-8-sig")  # a byte-order mark is none of it
  except FileNotFoundError:
    raise UserError(
      f"tree: {file} does not exist; give medusa-63, a branching per depth "
      "such as 4,2,1, or a file"
    ) from None
  except (OSError, ValueError) as error:  # not UTF-8, or a NUL in the path
    reason = getattr(error, "strerror", None) or "it is not text"
    raise UserError(f"tree: {file} cannot be read: {reason}") from None
  if file.suffix == ".py":
    values: Any = _python_list(file, text, name)
  else:
    try:
      values = json.loads(text)
    except (ValueError, RecursionError) as error:
      what = getattr(error, "msg", "a number too long, or nested too deeply")
      line = getattr(error, "lineno", 1)
      raise UserError(
        f"tree: {file} line {line} is not JSON ({what}); write {_FORMS}"
      ) from None
  try:
    return tree_from_dict(values) if isinstance(values, dict) else _tree(values)
  except UserError as error:
    raise UserError(f"tree: {path}: {_without_prefix(error)}") from None


def tree_to_dict(tree: Tree) -> dict[str, list[int]]:
  """Returns parents and ranks, ready for JSON."""
  return {"parents": list(tree.parents), "ranks": list(tree.ranks)}


def tree_from_dict(values: Any) -> Tree:
  """Returns the tree of `tree_to_dict`.

  Args:
    values: what JSON gave back.

  Returns:
    The tree.

  Raises:
    UserError: not a tree.
  """
  if not isinstance(values, dict) or set(values) != {"parents", "ranks"}:
    there = sorted(values) if isinstance(values, dict) else values
    raise UserError(f"tree: {_short(there)} are not parents and ranks")
  return Tree(_ints(values["parents"]), _ints(values["ranks"]))


def _split_name(text: str) -> tuple[pathlib.Path, str]:
  """Splits PATH:NAME; a file whose own name has a colon stays whole."""
  front, colon, name = text.rpartition(":")
  if colon and front.endswith(".py") and not pathlib.Path(text).exists():
    return pathlib.Path(front), name
  return pathlib.Path(text), ""


def _python_list(file: pathlib.Path, text: str, name: str) -> list:
  try:
    module = ast.parse(text)
  except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
    line = getattr(error, "lineno", None) or 1
    raise UserError(
      f"tree: {file} line {line} is not Python; write {_FORMS}"
    ) from None
  lists: dict[str, list] = {}
  for node in module.body:
    if isinstance(node, ast.Assign):
      targets: list[ast.expr] = node.targets
    elif isinstance(node, ast.AnnAssign) and node.value:
      targets = [node.target]
    else:
      continue
    try:
      value = ast.literal_eval(node.value)  # type: ignore[arg-type]
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
      continue  # computed, so no list to be read
    if isinstance(value, (list, tuple)):
      lists |= {t.id: list(value) for t in targets if isinstance(t, ast.Name)}
  if not lists:
    raise UserError(
      f"tree: {file} assigns no list; write name = [[0], [1], [0, 0]]"
    )
  if name and name not in lists:
    raise UserError(
      f"tree: {file} has no list {name!r}; it has {', '.join(lists)}"
    )
  if not name and len(lists) > 1:
    raise UserError(
      f"tree: {file} has the lists {', '.join(lists)}; choose one, as in "
      f"{file}:{next(iter(lists))}"
    )
  return lists[name or next(iter(lists))]


def _tree(paths: Any) -> Tree:
  if not isinstance(paths, list):
    raise UserError(
      f"tree: {_short(paths)} is no list of paths; write {_FORMS}"
    )
  if not paths:
    raise UserError("tree: the list of paths is empty; write at least [[0]]")
  read = [_ints(path) for path in paths]
  if () in read:
    raise UserError(
      "tree: [] is no path to list; the root is in every tree, so list only "
      "what stands below it"
    )
  return Tree.from_rank_paths(read)


def _ints(values: Any) -> tuple[int, ...]:
  # type(), because to Python true is an integer too.
  if not isinstance(values, (list, tuple)) or any(
    type(value) is not int for value in values
  ):
    raise UserError(f"tree: {_short(values)} is no list of whole numbers")
  return tuple(values)


def _short(values: Any) -> str:
  text = config_lib.shown(values)
  return text if len(text) <= 60 else f"{text[:57]}..."


def _without_prefix(error: UserError) -> str:
  return str(error).removeprefix("tree: ")
