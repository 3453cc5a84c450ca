"""Experiments and configurations in files."""

import importlib.util
import inspect
import json
import pathlib

from mtpjax.config.experiment import Config, config_from_dict
from mtpjax.errors import UserError


def load_experiment(path: str | pathlib.Path, variant: str = "") -> Config:
  """Runs an experiment file and returns its configuration.

  Args:
    path: a Python file that defines `config()` or `config(variant)`.
    variant: passed to `config`; empty calls it without.

  Returns:
    The configuration.

  Raises:
    UserError: no such file, no `config` in it, or it returns something else.
  """
  path = pathlib.Path(path)
  if not path.is_file():
    raise UserError(f"experiment {path}: no such file; see experiments/")
  spec = importlib.util.spec_from_file_location(path.stem, path)
  if spec is None or spec.loader is None:
    raise UserError(f"experiment {path}: not a Python file (.py)")
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  make = getattr(module, "config", None)
  if not callable(make):
    raise UserError(f"experiment {path}: defines no function config()")
  parameters = inspect.signature(make).parameters.values()
  if variant and not parameters:
    raise UserError(f"experiment {path}: config() takes no variant")
  if not variant and any(
    p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD
    for p in parameters
  ):
    raise UserError(
      f"experiment {path}: config(variant) has no default; give --variant"
    )
  result = make(variant) if variant else make()
  if not isinstance(result, Config):
    raise UserError(
      f"experiment {path}: config() returned {type(result).__name__}, "
      "not a mtpjax.config.Config"
    )
  return result


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
      "`mtpjax train`?"
    )
  try:
    return config_from_dict(json.loads(path.read_text()))
  except json.JSONDecodeError as error:
    raise UserError(f"{path}: not valid JSON ({error})") from error
