"""`mtpjax calibrate`."""

import argparse
from typing import Any

from mtpjax.cli.arguments import add_json, add_loads, int_from


def add(commands: Any) -> None:
  """Adds `calibrate`."""
  parser = commands.add_parser(
    "calibrate",
    help="measure which drafts pay, for --mode auto",
    description="Decodes held-out text, measures passes on this device, and "
    "saves the fastest tree, or that none pays, in the work directory.",
  )
  parser.add_argument("workdir", help="of mtpjax train")
  parser.add_argument("--step", type=int, help="checkpoint; default latest")
  add_loads(parser, (1, 8))
  for name, least, default, text in (
    ("texts", 2, 32, "held-out prompts, half of them to judge by"),
    ("prompt-length", 1, 64, "tokens of a prompt"),
    ("new-tokens", 8, 128, "tokens decoded behind each"),
    ("max-nodes", 1, 128, "of the largest tree"),
    ("repeats", 1, 5, "timed runs of each pass"),
  ):
    parser.add_argument(
      f"--{name}",
      type=int_from(least),
      default=default,
      help=f"{text}; default {default}",
    )
  parser.set_defaults(run=_run)
  add_json(parser)


def _run(args: argparse.Namespace, console: Any) -> Any:
  from mtpjax.jobs import calibrate

  return calibrate.run(
    args.workdir, console, args.step, args.batches, args.temperatures,
    args.texts, args.prompt_length, args.new_tokens, args.max_nodes,
    args.repeats,
  )  # fmt: skip
