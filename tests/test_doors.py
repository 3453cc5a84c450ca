"""Nobody asks a value for its name: what differs is an attribute or a method.

A kind of head, a drafter, a verifier, a mode, a tap or a target is added in one
file and one line of a table. That holds as long as no code outside the room
that owns the table compares such a name with a string.
"""

import ast
import pathlib

import pytest

import mtpjax

PACKAGE = pathlib.Path(mtpjax.__file__).parent
# Whose table it is, or whose question; () stands for nobody.
OWNERS = {
  "kind": "heads",
  "drafter": "decode/drafters",
  "verifier": "decode/verifiers",
  "mode": "decode/modes.py",
  "tap": ("config", "heads"),
  "targets": "losses",
  "wiring": "heads",
  "tokenizer": "data",
  "is_chain": (),
}
ASKS = """
def f(x, config):
  if x.heads.kind == "block": pass
  if "coupled" != x.verifier: pass
  if config.decode.mode in ("chain", "tree"): pass
  if getattr(x, "drafter") == "lookup": pass
  match x.tap:
    case "normed": pass
"""


def _names(node):
  """The last name of what is compared: of a.b.kind, getattr(a, "kind")."""
  if isinstance(node, ast.Attribute):
    if not ast.unparse(node).endswith("dtype.kind"):  # NumPy's
      yield node.attr
  elif isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr":
    if isinstance(node.args[1], ast.Constant):
      yield node.args[1].value
  elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
    yield node.slice.value


def _has_string(node):
  return any(
    isinstance(part, ast.Constant)
    and isinstance(part.value, str)
    and part.value
    for part in ast.walk(node)
  )


def questions(tree):
  """Yields (line, name) wherever a name is compared with a string."""
  for node in ast.walk(tree):
    if isinstance(node, ast.Compare):
      sides = [node.left, *node.comparators]
      for side in sides:
        for name in _names(side):
          others = [other for other in sides if other is not side]
          if name in OWNERS and any(map(_has_string, others)):
            yield node.lineno, name
    elif isinstance(node, ast.Match):
      for name in _names(node.subject):
        if name in OWNERS:
          yield node.lineno, name
    elif isinstance(node, ast.Attribute) and node.attr == "is_chain":
      yield node.lineno, node.attr


def test_questions_are_found():
  found = [name for _, name in questions(ast.parse(ASKS))]
  assert sorted(found) == ["drafter", "kind", "mode", "tap", "verifier"]


@pytest.mark.parametrize("name", OWNERS)
def test_nobody_but_the_owner_asks(name):
  strangers = []
  for path in sorted(PACKAGE.rglob("*.py")):
    place = path.relative_to(PACKAGE).as_posix()
    if place.startswith(OWNERS[name]):
      continue
    strangers += [
      f"{place}:{line}"
      for line, asked in questions(ast.parse(path.read_text()))
      if asked == name
    ]
  assert not strangers, f"{name} is compared with a string"
