"""`mtpjax generate`."""

import argparse
import pathlib
from typing import Any

from mtpjax import config as config_lib
from mtpjax.cli.arguments import add_json, add_places


def add(commands: Any) -> None:
  """Adds `generate`."""
  parser = commands.add_parser(
    "generate", help="continue prompts with a trained model"
  )
  parser.add_argument("workdir", help="of mtpjax train")
  source = parser.add_mutually_exclusive_group()
  source.add_argument(
    "--prompt", help="one text, continued as a stream; default standard input"
  )
  source.add_argument(
    "--prompts",
    type=pathlib.Path,
    metavar="FILE",
    help='JSON Lines with "text", "ids" or "messages", decoded in batches',
  )
  source.add_argument(
    "--chat",
    metavar="TEXT",
    help="what a user says to a model with a chat template, answered as a "
    "stream",
  )
  parser.add_argument(
    "--out",
    type=pathlib.Path,
    metavar="FILE",
    help="new JSON Lines file for what comes of --prompts, to be read or "
    "trained on: jsonl:FILE:prompt,completion or jsonl:FILE:messages",
  )
  parser.add_argument("--step", type=int, help="checkpoint; default latest")
  add_places(parser, data=False)
  parser.add_argument(
    "--ignore-eos", action="store_true", help="go on whatever comes"
  )
  add_settings(parser)
  parser.set_defaults(run=_run)
  add_json(parser)


def add_settings(parser: argparse.ArgumentParser) -> None:
  """Adds an argument per field of the section `decode`."""
  for path, field in config_lib.fields():
    section, name = path.split(".")
    if section == "decode":
      # Whatever could part texts can be in one: each is typed on its own.
      is_texts = config_lib.is_texts(field.type)
      kind = "str" if is_texts else config_lib.kind_name(field.type)
      times = "; may be given several times" if is_texts else ""
      parser.add_argument(
        "--" + name.replace("_", "-"),
        dest=name,
        action="append" if is_texts else "store",
        metavar=kind.upper(),
        default=argparse.SUPPRESS,
        help=f"{field.metadata['help']}{times}; default that of the run",
      )


def _run(args: argparse.Namespace, console: Any) -> Any:
  from mtpjax.cli.console import Console
  from mtpjax.jobs import generate

  # Standard output is for the text alone.
  console = Console(stderr=True)
  return generate.run(
    args.workdir, console, args.prompt, args.prompts, args.step,
    args.ignore_eos, not (args.json or args.out), args.chat, args.out,
    args.base_path, **given_settings(args),
  )  # fmt: skip


def given_settings(
  args: argparse.Namespace,
) -> dict[str, str | list[str]]:
  """Returns the fields of `decode` among the arguments, as they were typed."""
  names = {path.removeprefix("decode.") for path, _ in config_lib.fields()}
  return {k: v for k, v in vars(args).items() if k in names}
