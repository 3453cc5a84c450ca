"""`mtpjax calibrate`."""

import argparse
import functools
import pathlib
from typing import Any

from mtpjax.cli.arguments import (
  add_json,
  add_loads,
  add_places,
  int_from,
  write_known_figures,
)


def add(commands: Any) -> None:
  """Adds `calibrate`."""
  parser = commands.add_parser(
    "calibrate",
    help="measure which drafts pay, for --mode auto",
    description="Decodes held-out text or --prompts, measures passes on this "
    "device, and saves the fastest tree, or that none pays, in the work "
    "directory.",
  )
  parser.add_argument("workdir", help="of mtpjax train or mtpjax convert")
  parser.add_argument("--step", type=int, help="checkpoint; default latest")
  add_loads(parser, (1, 8))
  for name, least, default, text in (
    ("texts", 2, 32, "prompts, half of them to judge by"),
    ("prompt-length", 1, 64, "tokens of a held-out prompt"),
    ("new-tokens", 8, 128, "tokens decoded after each"),
    ("max-nodes", 1, 128, "of the largest tree"),
    ("repeats", 1, 5, "timed runs of each pass"),
  ):
    parser.add_argument(
      f"--{name}",
      type=int_from(least),
      default=default,
      help=f"{text}; default {default}",
    )
  parser.add_argument(
    "--prompts",
    type=pathlib.Path,
    metavar="FILE",
    help='JSON Lines with "text", "ids" or "messages" to decode instead of '
    "held-out rows; default held-out rows",
  )
  add_places(parser)
  parser.set_defaults(run=_run)
  add_json(parser)


def _run(args: argparse.Namespace, console: Any) -> Any:
  from mtpjax.jobs import calibrate

  return calibrate.run(
    args.workdir, console, args.step, args.batches, args.temperatures,
    args.texts, args.prompt_length, args.new_tokens, args.max_nodes,
    args.repeats, args.prompts, args.data_path, args.base_path,
    functools.partial(write_known_figures, args.json),
  )  # fmt: skip
