"""Experiments and configurations in files."""

import dataclasses
import importlib.util
import inspect
import pathlib
import re
import sys
import traceback
from collections.abc import Callable
from typing import Any

from mtpjax.config.builtin import experiment_file
from mtpjax.config.experiment import Config, config_from_dict, read_json
from mtpjax.config.values import nearest, shown
from mtpjax.errors import UserError


def load_experiment(path: str | pathlib.Path, variant: str = "") -> Config:
  """Runs an experiment file and returns its configuration.

  Args:
    path: a Python file that defines `config()` or `config(variant)`, or the
      name of a built-in experiment; a file of that name goes first.
    variant: passed to `config`; empty calls it without.

  Returns:
    The configuration.

  Raises:
    UserError: no such file, no `config` in it, it returns something else, or
      it ends in an error: that error, and the line of the file.
  """
  path = experiment_file(path)
  make = getattr(_run_file(path), "config", None)
  if make is None:
    raise UserError(f"experiment {path}: defines no function config()")
  if not callable(make):
    raise UserError(
      f"experiment {path}: config is {shown(make)}, not a function; write "
      "def config(): return ..."
    )
  _check_arguments(path, make, variant)
  result = _call(path, lambda: make(variant) if variant else make())
  if not isinstance(result, Config):
    raise UserError(
      f"experiment {path}: config() returned {type(result).__name__}, "
      "not a mtpjax.config.Config"
    )
  return result


def _run_file(path: pathlib.Path) -> Any:
  """Runs a file as a module; from its source, never from a stale copy."""
  source = path.read_bytes()
  spec = importlib.util.spec_from_file_location(
    f"mtpjax_experiment_{path.stem}", path
  )
  assert spec is not None
  module = importlib.util.module_from_spec(spec)
  # Data classes of the file look their module up.
  sys.modules[spec.name] = module
  code = _call(path, lambda: compile(source, str(path), "exec"))
  _call(path, lambda: exec(code, module.__dict__))
  return module


def _check_arguments(
  path: pathlib.Path, make: Callable[..., Any], variant: str
) -> None:
  """Raises UserError unless `make` takes the variant, and nothing else."""
  try:
    signature = inspect.signature(make)
  except (TypeError, ValueError):  # of some built-in
    return
  try:
    signature.bind(*([variant] if variant else []))
  except TypeError as error:
    if not variant and _fits(signature, "variant"):
      name = next(iter(signature.parameters))
      raise UserError(
        f"experiment {path}: config({name}) has no default; give --variant"
      ) from error
    if variant and _fits(signature):
      raise UserError(
        f"experiment {path}: config() takes no variant"
      ) from error
    raise UserError(
      f"experiment {path}: config{signature} must do with no argument, or "
      "with a variant alone"
    ) from error


def _fits(signature: inspect.Signature, *arguments: str) -> bool:
  try:
    signature.bind(*arguments)
  except TypeError:
    return False
  return True


def _call(path: pathlib.Path, function: Callable[[], Any]) -> Any:
  """Returns `function()`; what it raises becomes a UserError with the line."""
  try:
    return function()
  except (Exception, SystemExit) as error:
    line = _line(error, path)
    where = f"experiment {path}" + (f", line {line}" if line else "")
    raise UserError(f"{where}: {_reason(error)}") from error


def _line(error: BaseException, path: pathlib.Path) -> int | None:
  """Returns the last line of the file that had a part in an error."""
  if isinstance(error, SyntaxError) and error.filename == str(path):
    return error.lineno
  lines = [
    frame.lineno
    for frame in traceback.extract_tb(error.__traceback__)
    if frame.filename == str(path)
  ]
  return lines[-1] if lines else None


def _reason(error: BaseException) -> str:
  """Returns an error in one line, with what may have been meant."""
  text = str(error)
  if isinstance(error, UserError):
    return text
  if isinstance(error, SystemExit):
    return f"the file ends the program: {text}"
  if isinstance(error, SyntaxError):
    text = error.msg
  line = f"{type(error).__name__}: {text}".removesuffix(": ")
  return line if "did you mean" in line.lower() else line + _meant(error, text)


def _meant(error: BaseException, text: str) -> str:
  """Returns "; did you mean ...?" for a name that there isn't, or ""."""
  unknown = re.search(r"(\w+)\.__init__\(\) got an unexpected .* '(\w+)'", text)
  kinds: list[Any] = [
    Config,
    *(section.type for section in dataclasses.fields(Config)),
  ]
  if unknown:
    for kind in kinds:
      if kind.__name__ == unknown[1]:
        names = [field.name for field in dataclasses.fields(kind)]
        return nearest(unknown[2], names) or f"; it has {', '.join(names)}"
  if isinstance(error, ModuleNotFoundError) and error.name:
    root = error.name.split(".")[0]
    if root not in sys.modules:
      return f"; install it, as with: pip install {root}"
  if isinstance(error, AttributeError) and error.name:
    return nearest(error.name, dir(error.obj))
  if isinstance(error, NameError) and error.name:
    return nearest(error.name, _names_at(error))
  missing = re.search(r"cannot import name '(\w+)' from '([\w.]+)'", text)
  if missing and missing[2] in sys.modules:
    return nearest(missing[1], dir(sys.modules[missing[2]]))
  return ""


def _names_at(error: BaseException) -> list[str]:
  """Returns the names that there were where an error was raised."""
  trace = error.__traceback__
  while trace is not None and trace.tb_next is not None:
    trace = trace.tb_next
  if trace is None:
    return []
  frame = trace.tb_frame
  return [*frame.f_locals, *frame.f_globals, *frame.f_builtins]


def load_config(path: pathlib.Path) -> Config:
  """Reads a configuration that `Config.save` wrote.

  Args:
    path: a `config.json`.

  Returns:
    The configuration.

  Raises:
    UserError: the file is missing, is not JSON, or has unknown fields.
  """
  if not path.is_file():
    raise UserError(
      f"{path}: no such file; is {path.parent} a work directory of "
      "`mtpjax train` or `mtpjax convert`?"
    )
  try:
    values = read_json(path)
  except UnicodeDecodeError as error:
    raise UserError(f"{path}: not valid JSON; it is damaged") from error
  except ValueError as error:  # also of numbers of thousands of digits
    raise UserError(f"{path}: not valid JSON ({error})") from error
  if isinstance(values, dict) and values.keys() & {
    "architectures", "model_type", "base_model_name_or_path",
  }:  # fmt: skip
    raise UserError(
      f"{path}: is a published model's, not a run's; convert it first: mtpjax "
      f"convert hf {path.parent} WORKDIR, and give WORKDIR"
    )
  try:
    return config_from_dict(values)
  except UserError as error:
    raise UserError(f"{path}: {error}") from error
