"""Every Python example of the README runs; its tree names what there is."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_there_are_examples():
  assert len(EXAMPLES) == 2


@pytest.mark.parametrize("example", EXAMPLES, ids=["load", "loss"])
def test_example_runs(example, in_tiny_root, capsys):
  exec(compile(example, "README.md", "exec"), {})
  assert capsys.readouterr().out


def test_tree_names_every_folder_and_no_other():
  tree = README.split("## What is where")[1].split("```")[1]
  packages = {
    path.parent.name + "/" for path in (ROOT / "mtpjax").glob("*/__init__.py")
  }
  named = set(re.findall(r"^  (\w+/)", tree, flags=re.MULTILINE))
  assert named == packages
  tops = set(re.findall(r"^(\w+/)", tree, flags=re.MULTILINE))
  assert all((ROOT / top).is_dir() for top in tops)


def test_nothing_is_named_by_the_machine_it_was_written_on():
  for path in ROOT.rglob("*"):
    hidden = any(part.startswith(".") for part in path.parts[len(ROOT.parts) :])
    if path.suffix in (".py", ".md", ".sh", ".cfg") and not hidden:
      text = path.read_text()
      assert "/" + "work/" not in text, path


def test_no_placeholder_is_left():
  assert not re.findall(r"^[A-Z_]{4,}$", README, flags=re.MULTILINE)
