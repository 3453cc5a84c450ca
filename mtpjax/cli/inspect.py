"""`mtpjax inspect`."""

import argparse
from typing import Any

from mtpjax.cli.arguments import add_json


def add(commands: Any) -> None:
  """Adds `inspect`."""
  parser = commands.add_parser(
    "inspect",
    help="what is in a work directory",
    description="Shows what is in a work directory: parameters by part, heads, "
    "tokenizer, checkpoints, data, base, calibration, disk. No weights are "
    "read.",
  )
  parser.add_argument("workdir", help="of mtpjax train or mtpjax convert")
  parser.set_defaults(run=_run)
  add_json(parser)


def _run(args: argparse.Namespace, console: Any) -> Any:
  from mtpjax.jobs import inspect

  return inspect.run(args.workdir, console)
