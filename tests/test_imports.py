"""Who may import whom: the house of design.md, enforced."""

import ast
import pathlib

import pytest

import mtpjax

PACKAGE = pathlib.Path(mtpjax.__file__).parent
ANYONE_MAY_READ = {"config", "errors", "progress", "staging", "_version"}
BELOW_JOBS = {
  "train", "evals", "budget", "decode", "superposed", "checkpoint", "losses",
  "heads", "model", "data", "parallel",
}  # fmt: skip
MAY_IMPORT = {
  # What is offered to users of the library, imported when it is asked for.
  # Its console is the command's.
  "__init__": BELOW_JOBS | {"api", "jobs", "cli"},
  "_version": set(),
  "errors": set(),
  "progress": set(),
  "staging": set(),
  "config": set(),
  "__main__": {"cli"},
  "cli": {"jobs"},
  "jobs": BELOW_JOBS | {"api"},
  "api": BELOW_JOBS,
  "train": {"losses", "heads", "model", "data", "checkpoint", "parallel"},
  "evals": {
    "budget",
    "decode",
    "losses",
    "data",
    "heads",
    "model",
    "parallel",
  },
  "budget": {"decode", "losses", "data", "heads", "model"},
  "decode": {"heads", "model", "parallel"},
  "superposed": {"decode", "model"},
  "checkpoint": {"parallel"},
  "checkpoint.convert": {"parallel", "model", "heads"},
  "losses": {"heads", "model", "parallel"},
  "heads": {"model", "parallel"},
  "model": {"parallel"},
  "data": set(),
  "parallel": set(),
}
# What commands have in common: how they print, and read what they are given.
SHARED_BY_JOBS = {"prompts", "reading", "report"}
NEVER = {"experiments", "launch", "tests"}


def imported_names(tree, module):
  """Yields (line, dotted name) of every import, wherever it stands.

  `from a import b` yields a.b: b may be a module.
  """
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      for alias in node.names:
        yield node.lineno, alias.name
    elif isinstance(node, ast.ImportFrom):
      parts = module[: len(module) - node.level] if node.level else []
      base = ".".join([*parts, *([node.module] if node.module else [])])
      for alias in node.names:
        yield node.lineno, f"{base}.{alias.name}"
    elif isinstance(node, ast.Call) and node.args:
      called = ast.unparse(node.func).split(".")[-1]
      name = node.args[0]
      if called in ("import_module", "__import__") and isinstance(
        name, ast.Constant
      ):
        yield node.lineno, str(name.value)


def part_of(names):
  """The row of the table a dotted name below mtpjax belongs to."""
  return (
    "checkpoint.convert"
    if names[:2] == ["checkpoint", "convert"]
    else names[0]
    if names
    else "__init__"
  )


def is_another_job(importer, target):
  """Do modules of two commands meet? Folders of jobs are one command each.

  `SHARED_BY_JOBS` are no commands.
  """
  if importer[:1] != ["jobs"] or target[:1] != ["jobs"]:
    return False
  job = "".join(target[1:2])
  return job != "".join(importer[1:2]) and job not in SHARED_BY_JOBS


def violations(package):
  """Lists what breaks the rules, as "file:line: reason"."""
  found = []
  for path in sorted(package.rglob("*.py")):
    relative = path.relative_to(package)
    names = [*relative.with_suffix("").parts]
    where = str(relative)
    if "utils" in names:
      found.append(f"{where}:0: a module named utils")
    # For relative imports: a package counts as its own __init__.
    module = ["mtpjax", *names]
    importer = part_of(names)
    if importer not in MAY_IMPORT:
      found.append(f"{where}:0: not in the table")
      continue
    for line, name in imported_names(ast.parse(path.read_text()), module):
      root, *rest = name.split(".")
      if root in NEVER:
        found.append(f"{where}:{line}: imports {root}")
      if root != "mtpjax":
        continue
      if is_another_job(names, rest):
        found.append(f"{where}:{line}: a job imports {name}")
      target = part_of(rest).split(".")[0] if rest else "__init__"
      if importer != "__init__" and target not in MAY_IMPORT:
        # A public name of the package itself, or something not in the table.
        found.append(f"{where}:{line}: imports {name}")
      elif target not in (
        MAY_IMPORT[importer] | ANYONE_MAY_READ | {importer.split(".")[0]}
      ):
        found.append(f"{where}:{line}: {importer} imports {target}")
  return found


def test_imports_follow_the_table():
  assert violations(PACKAGE) == []


def test_the_table_says_what_it_should():
  assert "decode" not in MAY_IMPORT["losses"]
  assert "losses" not in MAY_IMPORT["decode"]
  importers = {name for name, may in MAY_IMPORT.items() if "jobs" in may}
  assert importers == {"cli", "__init__"}


@pytest.mark.parametrize(
  "file, source, reason",
  [
    ("losses/a.py", "from mtpjax import decode", "losses imports decode"),
    ("decode/a.py", "import mtpjax.losses.targets", "decode imports losses"),
    ("decode/a.py", "from mtpjax.losses import x", "decode imports losses"),
    ("decode/b/a.py", "from ...losses import x", "decode imports losses"),
    ("losses/__init__.py", "from .. import decode", "losses imports decode"),
    ("train/a.py", "def f():\n  from mtpjax import evals",
     "train imports evals"),
    ("model/a.py", "import importlib\nimportlib.import_module('mtpjax.heads')",
     "model imports heads"),
    ("data/a.py", "import jax\nfrom mtpjax.parallel import mesh",
     "data imports parallel"),
    ("checkpoint/a.py", "from mtpjax import heads",
     "checkpoint imports heads"),
    ("api.py", "from mtpjax import jobs", "api imports jobs"),
    ("config.py", "from mtpjax.model import Block", "config imports model"),
    ("model/a.py", "from experiments import quickstart",
     "imports experiments"),
    ("model/a.py", "import tests.conftest", "imports tests"),
    ("jobs/a.py", "from mtpjax.jobs import b", "a job imports mtpjax.jobs.b"),
    ("jobs/a.py", "from mtpjax.jobs.bench.b import c",
     "a job imports mtpjax.jobs.bench.b.c"),
    ("jobs/bench/a.py", "from mtpjax.jobs.generate import b",
     "a job imports mtpjax.jobs.generate.b"),
    ("budget/a.py", "from mtpjax import evals", "budget imports evals"),
    ("decode/a.py", "from mtpjax import budget", "decode imports budget"),
    ("model/utils.py", "", "a module named utils"),
    ("helpers/a.py", "", "not in the table"),
  ],
)  # fmt: skip
def test_a_planted_violation_is_found(tmp_path, file, source, reason):
  path = tmp_path / file
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(source)
  (found,) = violations(tmp_path)
  assert found.startswith(f"{file}:") and found.endswith(reason)


@pytest.mark.parametrize(
  "file, source",
  [
    ("losses/a.py", "from mtpjax import heads, parallel, config as c"),
    ("losses/a.py", "from . import targets\nfrom .targets import Targets"),
    ("checkpoint/convert/a.py", "from mtpjax.heads import HEADS"),
    ("checkpoint/convert/a.py", "from mtpjax.checkpoint import store"),
    ("data/a.py", "from mtpjax.errors import UserError"),
    ("jobs/bench/a.py", "from mtpjax.jobs.bench.b import c"),
    ("jobs/a.py", "from mtpjax.jobs.report import b"),
    ("__init__.py", "from mtpjax._version import __version__"),
  ],
)
def test_what_the_table_allows_is_no_violation(tmp_path, file, source):
  path = tmp_path / file
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(source)
  assert violations(tmp_path) == []
