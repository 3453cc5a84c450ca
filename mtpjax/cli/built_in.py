"""`mtpjax list` and `mtpjax new`: experiments to start from."""

import argparse
import pathlib
from typing import Any

from mtpjax import config as config_lib
from mtpjax.errors import UserError, quoted


def add(commands: Any) -> None:
  """Adds `list` and `new`."""
  shown = commands.add_parser(
    "list",
    help="show the experiments that come with mtpjax",
    description="Shows the experiments that come with mtpjax, and what to "
    "expect of them. Their names are taken wherever a file is.",
  )
  shown.set_defaults(run=_list)
  new = commands.add_parser(
    "new",
    help="copy an experiment, to make your own of it",
    description="Copies an experiment, to make your own of it.",
  )
  new.add_argument("file", type=pathlib.Path, help="the Python file to make")
  new.add_argument(
    "--from",
    dest="source",
    default="quickstart",
    metavar="EXPERIMENT",
    help="a built-in experiment or a file; default quickstart",
  )
  new.set_defaults(run=_new)


def _list(args: argparse.Namespace, console: Any) -> Any:
  for each in config_lib.built_in_experiments():
    console.print(f"{each.name}: {each.title}", soft_wrap=True)
    console.print(f"  {each.expected}", soft_wrap=True)
    console.print(f"  {each.path}", soft_wrap=True)


def _new(args: argparse.Namespace, console: Any) -> Any:
  source, file = config_lib.experiment_file(args.source), args.file
  if file.suffix != ".py":
    raise UserError(
      f"{file}: an experiment is a Python file; give a name that ends in .py"
    )
  text = source.read_bytes()
  file.parent.mkdir(parents=True, exist_ok=True)
  try:
    # Made here, or not at all: nobody's file is overwritten.
    with open(file, "xb") as made:
      made.write(text)
  except FileExistsError as error:
    raise UserError(f"{file}: is there already; give another name") from error
  console.print(
    f"{file} is a copy of {args.source}; change it, then: mtpjax prepare "
    f"{quoted(file)} && mtpjax train {quoted(file)} --workdir "
    f"{quoted(f'runs/{file.stem}')}",
    soft_wrap=True,
  )
