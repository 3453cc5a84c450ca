"""`mtpjax chat`."""

import argparse
from typing import Any

from mtpjax.cli.arguments import add_places
from mtpjax.cli.generate import add_settings, given_settings


def add(commands: Any) -> None:
  """Adds `chat`."""
  parser = commands.add_parser(
    "chat",
    help="talk with a model that has a chat template",
    description="Talks with a model that has a chat template and stays loaded. "
    "Each line of standard input is answered on standard output; /help lists "
    "what else a line may be. Ctrl-C stops an answer, Ctrl-D leaves.",
  )
  parser.add_argument("workdir", help="of mtpjax convert or mtpjax train")
  parser.add_argument("--step", type=int, help="checkpoint; default latest")
  add_places(parser, data=False)
  add_settings(parser)
  parser.set_defaults(run=_run)


def _run(args: argparse.Namespace, console: Any) -> None:
  from mtpjax.cli.console import Console
  from mtpjax.jobs import chat

  # Standard output is for the answers alone.
  chat.run(
    args.workdir, Console(stderr=True), args.step, given_settings(args),
    args.base_path,
  )  # fmt: skip
