"""The command `mtpjax`: reads arguments, calls a job."""

import json
import os
import pathlib
import sys
from collections.abc import Sequence

from mtpjax._version import __version__
from mtpjax.cli import (
  bench,
  calibrate,
  compilation_cache,
  convert,
  experiment,
  generate,
  tokenizer,
)
from mtpjax.cli.arguments import Parser
from mtpjax.errors import UserError


def _build_parser() -> Parser:
  parser = Parser(
    prog="mtpjax",
    description="Train models that predict several future tokens, and decode "
    "with them. Begin with: mtpjax prepare experiments/quickstart.py",
    epilog=compilation_cache.HELP,
  )
  parser.add_argument("--version", action="version", version=__version__)
  commands = parser.add_subparsers(
    dest="command", metavar="COMMAND", required=True
  )
  for command in (
    experiment, generate, calibrate, bench, tokenizer, convert
  ):  # fmt: skip
    command.add(commands)
  return parser


def _check_writable(path: pathlib.Path) -> None:
  """Raises UserError if `path` cannot be written; makes nothing."""
  path = path.absolute()
  there = next(p for p in (path, *path.parents) if os.path.exists(p))
  if there.is_dir() == (there == path) or not os.access(there, os.W_OK):
    raise UserError(
      f"--json {path}: cannot be written, because of {there}; give the path "
      "of a file"
    )


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
    args = _build_parser().parse_args(argv)
    if getattr(args, "json", None):
      _check_writable(args.json)
    with compilation_cache.kept():
      figures = args.run(args, console)
    if getattr(args, "json", None):
      args.json.parent.mkdir(parents=True, exist_ok=True)
      args.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0
  except UserError as error:
    print(f"mtpjax: error: {error}", file=sys.stderr)
    return 2
