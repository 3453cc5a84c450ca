"""The command `mtpjax`: reads arguments, calls a job."""

import argparse
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from mtpjax import config as config_lib
from mtpjax._version import __version__
from mtpjax.errors import UserError


class _Parser(argparse.ArgumentParser):
  """Says what is wrong in one line."""

  def __init__(self, *args: Any, **kwargs: Any):
    super().__init__(*args, allow_abbrev=False, **kwargs)

  def error(self, message: str) -> NoReturn:
    raise UserError(f"{message}; see {self.prog} --help")


def _add_overrides(parser: argparse.ArgumentParser) -> None:
  """Adds one argument per configuration field, `--optim.peak-lr`."""
  groups: dict[str, Any] = {}
  for path, field in config_lib.fields():
    section = path.split(".")[0]
    if section not in groups:
      groups[section] = parser.add_argument_group(f"override {section}")
    groups[section].add_argument(
      "--" + path.replace("_", "-"),
      dest=path,
      metavar=config_lib.kind_name(field.type).upper(),
      default=argparse.SUPPRESS,
      help=field.metadata["help"].replace("%", "%%"),
    )


def _experiment_parser(commands: Any, name: str, help: str) -> _Parser:
  parser = commands.add_parser(name, help=help, description=help)
  parser.add_argument("experiment", help="a Python file, see experiments/")
  parser.add_argument(
    "--variant", default="", help="passed to the experiment's config()"
  )
  _add_overrides(parser)
  return parser


def _add_json(parser: argparse.ArgumentParser) -> None:
  parser.add_argument(
    "--json", type=pathlib.Path, metavar="PATH", help="also write figures here"
  )


def _build_parser() -> _Parser:
  parser = _Parser(
    prog="mtpjax",
    description="Train models that predict several future tokens, and decode "
    "with them. Begin with: mtpjax prepare experiments/quickstart.py",
  )
  parser.add_argument("--version", action="version", version=__version__)
  commands = parser.add_subparsers(
    dest="command", metavar="COMMAND", required=True
  )
  prepare = _experiment_parser(
    commands, "prepare", "tokenise and pack the data of an experiment"
  )
  _add_json(prepare)
  train = _experiment_parser(
    commands, "train", "train an experiment, or go on where it stopped"
  )
  train.add_argument(
    "--workdir", required=True, help="where checkpoints and metrics go"
  )
  _add_json(train)
  evaluate = commands.add_parser(
    "evaluate", help="loss and accuracy per offset of a checkpoint"
  )
  evaluate.add_argument("workdir", help="of mtpjax train")
  evaluate.add_argument("--step", type=int, help="checkpoint; default latest")
  evaluate.add_argument(
    "--split", default="validation", choices=("validation", "train")
  )
  evaluate.add_argument(
    "--batches", type=int, default=0, help="at most so many; default all rows"
  )
  evaluate.add_argument(
    "--data-path", default="", help="prepared rows; default those of the run"
  )
  _add_json(evaluate)
  return parser


def _split_overrides(
  parser: _Parser, argv: Sequence[str]
) -> argparse.Namespace:
  args, unknown = parser.parse_known_args(argv)
  if unknown:
    name = unknown[0].split("=")[0]
    known = ["--" + path.replace("_", "-") for path, _ in config_lib.fields()]
    raise UserError(
      f"{unknown[0]}: no such option{config_lib.nearest(name, known)}"
    )
  return args


def _read_config(args: argparse.Namespace) -> config_lib.Config:
  paths = {path for path, _ in config_lib.fields()}
  changes = {k: v for k, v in vars(args).items() if k in paths}
  config = config_lib.load_experiment(args.experiment, args.variant)
  return config_lib.override(config, changes)


def _run(args: argparse.Namespace, console: Any) -> dict[str, Any]:
  # Jobs are imported where they run: `mtpjax --help` needs no JAX.
  if args.command == "prepare":
    from mtpjax.jobs import prepare

    return prepare.run(_read_config(args), console)
  if args.command == "train":
    from mtpjax.jobs import train

    return train.run(_read_config(args), args.workdir, console)
  if args.command == "evaluate":
    from mtpjax.jobs import evaluate

    return evaluate.run(
      args.workdir, console, args.step, args.split, args.batches,
      args.data_path,
    )  # fmt: skip
  raise AssertionError(args.command)


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command line.

  Args:
    argv: the arguments; those of the process if None.

  Returns:
    The exit status: 0, or 2 for a mistake of the user's.
  """
  import rich.console

  console = rich.console.Console()
  try:
    args = _split_overrides(
      _build_parser(), sys.argv[1:] if argv is None else argv
    )
    figures = _run(args, console)
    if getattr(args, "json", None):
      args.json.parent.mkdir(parents=True, exist_ok=True)
      args.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0
  except UserError as error:
    print(f"mtpjax: error: {error}", file=sys.stderr)
    return 2
