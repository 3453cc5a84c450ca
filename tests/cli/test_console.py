"""What is printed is printed as it is, wherever in the package."""

import ast
import pathlib

import pytest

import mtpjax
from mtpjax.cli.console import Console

PACKAGE = pathlib.Path(mtpjax.__file__).parent
# Names of what is never a text.
NUMBERS = {"batch", "temperature"}


def test_brackets_and_colons_stay(capsys):
  texts = ("pip install 'mtpjax[figures]'", "jsonl:a:key:b", "[/]", "[red]a")
  for text in texts:
    Console().print(text, soft_wrap=True)
  assert capsys.readouterr().out.splitlines() == list(texts)


def markup(tree):
  """Yields lines where rich may take a text for its markup."""
  for node in ast.walk(tree):
    if isinstance(node, ast.Attribute) and node.attr == "markup":
      if ast.unparse(node) == "rich.markup":
        yield node.lineno  # texts escaped for a console that takes them so
    if not isinstance(node, ast.Call):
      continue
    called = ast.unparse(node.func)
    options = {each.arg: ast.unparse(each.value) for each in node.keywords}
    is_off = options.get("markup") == "False"
    is_plain = is_off and options.get("emoji") == "False"
    if called == "rich.console.Console" and is_plain:
      continue
    if called in ("rich.console.Console", "Text.from_markup"):
      yield node.lineno
    if called.endswith("TextColumn") and not is_off:
      if not isinstance(node.args[0], ast.Constant) or (
        "{" in node.args[0].value
      ):
        yield node.lineno
    # rich reads what a spinner says as markup, whatever the console says.
    if called == "console.status" and any(
      isinstance(part, ast.Name) and part.id not in NUMBERS
      for part in ast.walk(node.args[0])
      if not isinstance(node.args[0], ast.Constant)
    ):
      yield node.lineno


@pytest.mark.parametrize(
  "source, found",
  [
    ("rich.console.Console()", 1),
    ("rich.console.Console(markup=False)", 1),
    ("rich.console.Console(markup=False, emoji=False)", 0),
    ("rich.markup.escape(path)", 1),
    ("TextColumn('{task.description}')", 1),
    ("TextColumn('{task.description}', markup=False)", 0),
    ("TextColumn('left')", 0),
    ("console.status(f'reading {path}')", 1),
    ("console.status('reading')", 0),
  ],
)
def test_markup_is_found(source, found):
  assert len(list(markup(ast.parse(source)))) == found


def test_no_text_is_markup():
  assert [
    f"{path.relative_to(PACKAGE)}:{line}"
    for path in PACKAGE.rglob("*.py")
    for line in markup(ast.parse(path.read_text()))
  ] == []
