"""`mtpjax tokenizer`."""

import argparse
import pathlib
from typing import Any

from mtpjax.cli.arguments import int_from, list_of


def add(commands: Any) -> None:
  """Adds `tokenizer train`."""
  tokenizer = commands.add_parser("tokenizer", help="train a tokenizer")
  kinds = tokenizer.add_subparsers(
    dest="tokenizer", metavar="ACTION", required=True
  )
  train = kinds.add_parser("train", help="train a byte-level BPE")
  train.add_argument(
    "--sources", type=list_of(str), default=("python-stdlib",),
    metavar="STR;...", help="as --data.sources; default python-stdlib",
  )  # fmt: skip
  train.add_argument(
    "--vocab-size",
    type=int_from(1),
    default=8192,
    help="ids of the tokenizer; default 8192",
  )
  train.add_argument(
    "--replace-invalid-utf8",
    action="store_true",
    help="read bytes that are not UTF-8 as U+FFFD; default to stop there",
  )
  train.add_argument(
    "--out", required=True, type=pathlib.Path, help="a tokenizer.json to write"
  )
  train.set_defaults(run=_train)


def _train(args: argparse.Namespace, console: Any) -> Any:
  from mtpjax.jobs import tokenizer

  return tokenizer.train(
    args.sources, args.vocab_size, args.out, console, args.replace_invalid_utf8
  )
