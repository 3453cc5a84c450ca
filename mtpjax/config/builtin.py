"""The experiments that come with mtpjax, by name, and where any one lies."""

import ast
import dataclasses
import pathlib

from mtpjax.config.values import nearest, shown
from mtpjax.errors import UserError

# mtpjax/ of a checkout, or of an installation.
_PACKAGE = pathlib.Path(__file__).parents[1]


@dataclasses.dataclass(frozen=True)
class BuiltIn:
  """An experiment that comes with mtpjax.

  Attributes:
    name: what commands take instead of a file.
    path: its file.
    title: the first line of its docstring.
    expected: what a run costs and gives, from "Hardware:" to the end of that
      paragraph, in one line; empty if it does not say.
  """

  name: str
  path: pathlib.Path
  title: str
  expected: str


def built_in_experiments() -> list[BuiltIn]:
  """Returns the experiments that come with mtpjax, sorted by name.

  They lie in experiments/ beside the package in a checkout, and within the
  package where it was installed from a wheel. None of them is run.
  """
  for folder in (_PACKAGE / "experiments", _PACKAGE.parent / "experiments"):
    if (folder / "quickstart.py").is_file():
      return [_read(path) for path in sorted(folder.glob("[!_]*.py"))]
  return []


def experiment_file(name: str | pathlib.Path) -> pathlib.Path:
  """Returns the file of an experiment.

  Args:
    name: a Python file, or else the name of a built-in experiment.

  Returns:
    Its path.

  Raises:
    UserError: there is neither, or the file is none of Python.
  """
  text, path = str(name), pathlib.Path(name)
  built_in = {each.name: each.path for each in built_in_experiments()}
  if path.is_file():
    if path.suffix != ".py":
      raise UserError(
        f"experiment {path}: not a Python file; its name must end in .py"
      )
    return path
  if text in built_in:
    return built_in[text]
  if path.is_dir():
    raise UserError(
      f"experiment {shown(text) if not text else path}: a folder; give the "
      "Python file in it, or a name that `mtpjax list` shows"
    )
  if path.exists():
    raise UserError(f"experiment {path}: not a file that can be read")
  raise UserError(
    f"experiment {path}: no such file{nearest(path.stem, list(built_in))}; "
    "`mtpjax list` shows those built in"
  )


def _read(path: pathlib.Path) -> BuiltIn:
  doc = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
  paragraphs = [" ".join(p.split()) for p in doc.split("\n\n")]
  expected = (p for p in paragraphs if p.startswith("Hardware:"))
  return BuiltIn(path.stem, path, paragraphs[0], next(expected, ""))
