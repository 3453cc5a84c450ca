"""Arguments: the parser, types of values, and overrides of a configuration."""

import argparse
import json
import math
import os
import pathlib
import sys
import types
from collections.abc import Callable, Collection, Sequence
from typing import Any, NoReturn

from mtpjax import config as config_lib
from mtpjax import staging
from mtpjax.errors import UserError


class Parser(argparse.ArgumentParser):
  """Says what is wrong in one line.

  Attributes:
    fill: adds the arguments, once they are asked for; for a command whose
      arguments depend on modules that are slow to import.
  """

  def __init__(self, **kwargs: Any):
    super().__init__(**kwargs, allow_abbrev=False)
    self.fill: Callable[[Parser], None] | None = None

  def parse_known_args(  # type: ignore[override]
    self, args: Sequence[str] | None = None, namespace: Any = None
  ) -> Any:
    """Reads --a_b as --a-b; stops at an unknown option, naming the nearest."""
    if self.fill is not None:
      fill, self.fill = self.fill, None
      fill(self)
    given = sys.argv[1:] if args is None else args
    found, unknown = super().parse_known_args(
      self._with_dashes(given), namespace
    )
    if unknown:
      name = unknown[0].split("=")[0]
      close = config_lib.nearest(name, list(self._option_string_actions))
      raise UserError(f"{name}: no such option{close}")
    return found, unknown

  def _with_dashes(self, args: Sequence[str]) -> list[str]:
    """Returns the arguments, options spelt as they are where they are made."""
    spelt = []
    is_after_options = False
    for arg in args:
      is_after_options = is_after_options or arg == "--"
      name, is_set, value = arg.partition("=")
      dashed = name.replace("_", "-")
      if dashed in self._option_string_actions and not is_after_options:
        arg = dashed + is_set + value
      spelt.append(arg)
    return spelt

  def error(self, message: str) -> NoReturn:
    """Raises what argparse would print below its usage."""
    raise UserError(f"{message}; see {self.prog} --help")


def add_overrides(
  parser: argparse.ArgumentParser,
  only: Collection[str] | None = None,
  defaults: config_lib.Config | None = None,
) -> None:
  """Adds one argument per configuration field, `--optim.peak-lr`.

  Args:
    parser: gets them.
    only: the sections and fields to add; None adds all.
    defaults: shown in the help; None shows none.
  """
  groups: dict[str, Any] = {}
  for path, field in config_lib.fields():
    section = path.split(".")[0]
    if only is not None and section not in only and path not in only:
      continue
    if section not in groups:
      groups[section] = parser.add_argument_group(f"override {section}")
    help = field.metadata["help"]
    if defaults is not None:
      name = path.removeprefix(f"{section}.")
      value = getattr(getattr(defaults, section), name)
      help += f"; default {config_lib.written(value, field.type)}"
    groups[section].add_argument(
      "--" + path.replace("_", "-"),
      dest=path,
      metavar=config_lib.kind_name(field.type).upper(),
      default=argparse.SUPPRESS,
      help=help.replace("%", "%%"),
    )


def add_json(parser: argparse.ArgumentParser) -> None:
  """Adds --json, the file that figures are written to."""
  parser.add_argument(
    "--json", type=pathlib.Path, metavar="PATH", help="also write figures here"
  )


def as_json(figures: Any) -> str:
  """Returns figures as JSON, with null for what is no number."""
  return json.dumps(_finite(figures), indent=2, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
  """Returns figures with null for what is no number, as JSON has it."""
  if isinstance(value, dict):
    return {key: _finite(each) for key, each in value.items()}
  if isinstance(value, list | tuple):
    return [_finite(each) for each in value]
  if isinstance(value, float) and not math.isfinite(value):
    return None
  return value


def write_known_figures(path: pathlib.Path | None, figures: Any) -> None:
  """Writes the file of --json before all is known; None writes nothing.

  What is no file of its own, as /dev/stdout, gets figures once, at the end.
  """
  if path is not None and _is_own_file(path):
    write_figures(path, figures)


def write_figures(path: pathlib.Path, figures: Any) -> None:
  """Writes the file of --json, whole or not at all."""
  text = as_json(figures)
  path.parent.mkdir(parents=True, exist_ok=True)
  if not _is_own_file(path):
    with open(path, "a") as stream:
      stream.write(text)
    return
  path = path.resolve()  # what a link leads to is replaced, not the link
  if not os.access(path.parent, os.W_OK):
    path.write_text(text)
    return
  with staging.whole_file(path) as part:
    part.write_text(text)


def _is_own_file(path: pathlib.Path) -> bool:
  """Whether figures are all that a file is for; /dev/stdout may be a file."""
  is_stream = pathlib.Path("/dev") in path.absolute().parents
  return not is_stream and (path.is_file() or not path.exists())


def add_places(parser: argparse.ArgumentParser, data: bool = True) -> None:
  """Adds --base.path and --data-path: where things lie that a run refers to."""
  parser.add_argument(
    "--base.path", "--base-path", dest="base_path", default="", metavar="DIR",
    help="the model that heads were trained on; default where the run says, "
    "seen from here and then from the run",
  )  # fmt: skip
  if data:
    parser.add_argument(
      "--data-path", "--data.path", dest="data_path", default="",
      metavar="DIR", help="prepared rows; default those of the run, seen from "
      "here and then from the run",
    )  # fmt: skip


def add_loads(
  parser: argparse.ArgumentParser, batches: tuple[int, ...]
) -> None:
  """Adds --batches, with its default, and --temperatures, of decoding."""
  shown = ",".join(map(str, batches))
  parser.add_argument(
    "--batches", type=list_of(int, 1), default=batches, metavar="INT,...",
    help=f"prompts decoded together; default {shown}",
  )  # fmt: skip
  parser.add_argument(
    "--temperatures", type=list_of(float, 0), default=(0.0,),
    metavar="FLOAT,...", help="0 is greedy; default 0",
  )  # fmt: skip


def _require_at_least(least: int, value: float) -> None:
  if not value >= least:
    raise argparse.ArgumentTypeError(f"{value} is not {least} or more")


def int_from(least: int) -> Any:
  """Returns an argument type: an integer not below `least`."""

  def parse(text: str) -> int:
    value = int(text)
    _require_at_least(least, value)
    return value

  parse.__name__ = "int"
  return parse


def list_of(kind: Any, least: int | None = None) -> Any:
  """Returns an argument type: values, none below `least`, at least one."""
  as_tuple = types.GenericAlias(tuple, (kind, ...))

  def parse(text: str) -> tuple[Any, ...]:
    values = config_lib.parse_value(text, as_tuple)
    if not values:
      raise argparse.ArgumentTypeError(f"{text!r} names none")
    if least is not None:
      for value in values:
        _require_at_least(least, value)
    return values

  parse.__name__ = config_lib.kind_name(as_tuple)
  return parse


def names(text: str) -> tuple[str, ...]:
  """An argument type: names, separated by commas."""
  return tuple(name.strip() for name in text.split(","))


def given_overrides(args: argparse.Namespace) -> dict[str, str]:
  """Returns the overrides among the arguments, by path."""
  paths = {path for path, _ in config_lib.fields()}
  return {k: v for k, v in vars(args).items() if k in paths}


def override_config(
  config: config_lib.Config, args: argparse.Namespace
) -> config_lib.Config:
  """Returns the configuration with the overrides among the arguments."""
  return config_lib.override(config, given_overrides(args))
