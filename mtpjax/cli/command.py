"""The run of a command: its arguments, its figures, and how it ends."""

import contextlib
import os
import pathlib
import signal
import sys
from collections.abc import Sequence
from typing import Any

from mtpjax._version import __version__
from mtpjax.cli import (
  background,
  bench,
  built_in,
  calibrate,
  chat,
  compilation_cache,
  convert,
  experiment,
  failures,
  generate,
  inspect,
  signals,
  tokenizer,
)
from mtpjax.cli.arguments import Parser, as_json, write_figures
from mtpjax.errors import UserError

# Modules whose `add` adds a command, or several, in the order of the help.
COMMANDS = [
  built_in, experiment, generate, chat, inspect, calibrate, bench, tokenizer,
  convert,
]  # fmt: skip


def build_parser() -> Parser:
  """Returns the parser of all commands."""
  parser = Parser(
    prog="mtpjax",
    description="Train models that predict several future tokens, and decode "
    "with them. Begin with: mtpjax prepare quickstart; then: mtpjax train "
    "quickstart --workdir runs/quickstart",
    epilog=compilation_cache.HELP,
  )
  parser.add_argument("--version", action="version", version=__version__)
  commands = parser.add_subparsers(
    dest="command", metavar="COMMAND", required=True
  )
  for command in COMMANDS:
    command.add(commands)
  return parser


def run(argv: Sequence[str] | None = None) -> int:
  """Runs a command; see `mtpjax.cli.main`."""
  restore = background.shorten()
  try:
    return _run_to_an_end(argv)
  finally:
    # What nobody waits for any longer may come late.
    if argv is None:
      signals.end_at_once()
    else:
      restore()


def _run_to_an_end(argv: Sequence[str] | None) -> int:
  """Runs a command; says how it failed, if it did."""
  with signals.raised() as received:
    name: list[str] = []
    try:
      status = _run(argv, name)
      return _end_by(received[-1]) if received else status
    except BaseException as error:
      # What a signal raised may have become another error on its way.
      if received or isinstance(error, KeyboardInterrupt):
        return _end_by(received[-1] if received else signal.SIGINT)
      if isinstance(error, Exception):
        return _fail(error, name[0] if name else None)
      raise


def _run(argv: Sequence[str] | None, name: list[str]) -> int:
  """Runs a command; puts its name into the list once it is known."""
  from mtpjax.cli import console

  console.print_any_character()
  try:
    args = build_parser().parse_args(argv)
  except SystemExit:  # of --help and --version
    if sys.stdout is not None:
      sys.stdout.flush()
    raise
  name.append(args.command)
  json_path = getattr(args, "json", None)
  if json_path is not None:
    _check_writable(json_path)
  with compilation_cache.kept():
    figures = args.run(args, console.Console())
  if json_path is not None:
    _write_figures(json_path, figures)
  if sys.stdout is not None:
    sys.stdout.flush()
  return 0


def _end_by(number: int) -> int:
  _say(signals.line(number))
  return signals.status(number)


def _fail(error: Exception, command: str | None) -> int:
  """Says in one line what failed; returns the exit status."""
  from mtpjax.cli import console

  if isinstance(error, BrokenPipeError) and error.filename is None:
    # As `head` does once it has its lines: nobody asks for more.
    console.silence(sys.stdout)
    return signals.status(signal.SIGPIPE)
  said = failures.explain(error, command)
  if console.fails(sys.stdout):
    console.silence(sys.stdout)
  if said is None:
    failures.report_bug(error, __version__)
    return 1
  _say(f"mtpjax: error: {failures.one_line(said)}")
  return 2


def _say(line: str) -> None:
  """Prints a line on standard error, unless that fails, too."""
  with contextlib.suppress(OSError, ValueError):
    print(line, file=sys.stderr, flush=True)


def _check_writable(path: pathlib.Path) -> None:
  """Raises UserError if `path` cannot be written; makes nothing."""
  absolute = path.absolute()
  there = next(p for p in (absolute, *absolute.parents) if os.path.exists(p))
  if there.is_dir() == (there == absolute) or not os.access(there, os.W_OK):
    raise UserError(
      f"--json {path}: cannot be written, because of {there}; give the path "
      "of a file"
    )


def _write_figures(path: pathlib.Path, figures: Any) -> None:
  """Writes figures as JSON; prints them where that fails."""
  try:
    write_figures(path, figures)
  except OSError:
    sys.stdout.write(as_json(figures))
    raise
