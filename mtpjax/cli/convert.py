"""`mtpjax convert` and `mtpjax export`: a subcommand for each format."""

import argparse
from typing import Any

from mtpjax.cli.arguments import (
  Parser,
  add_json,
  add_overrides,
  add_places,
  given_overrides,
  int_from,
)


def add(commands: Any) -> None:
  """Adds `convert` and `export`."""
  for name, help, fill in (
    ("convert", "make a work directory of a published checkpoint", _fill),
    ("export", "make a folder other programs read of a work directory",
     _fill_export),
  ):  # fmt: skip
    commands.add_parser(name, help=help).fill = fill


# Jobs, and the table of formats with them, are imported where they are needed:
# `mtpjax --help` needs no JAX.
def _fill(convert: Parser) -> None:
  from mtpjax.jobs.convert import FORMATS

  kinds = convert.add_subparsers(dest="kind", metavar="KIND", required=True)
  for name, format in FORMATS.items():
    if format.open is None:
      continue
    parser = kinds.add_parser(name, help=format.help, description=format.help)
    parser.add_argument("source", metavar=format.metavar, help=format.help)
    if format.is_on_base:
      parser.add_argument(
        "base", metavar="BASE_WORKDIR", help="of the model they were trained on"
      )
    parser.add_argument(
      "workdir", metavar="WORKDIR", help="the work directory to make"
    )
    if not format.is_on_base:
      add_overrides(
        parser,
        (
          "mesh", "model.dtype", "model.param_dtype", "model.remat",
          "model.attention",
        ),
      )  # fmt: skip
    parser.set_defaults(run=_convert)
    add_json(parser)


def _fill_export(export: Parser) -> None:
  from mtpjax.jobs.export import FORMATS

  kinds = export.add_subparsers(dest="kind", metavar="KIND", required=True)
  for name, format in FORMATS.items():
    if format.write is None:
      continue
    help = format.export_help
    parser = kinds.add_parser(name, help=help, description=help)
    parser.add_argument(
      "workdir", metavar="WORKDIR", help="of train or convert"
    )
    parser.add_argument("folder", metavar="DIR", help="the folder to make")
    parser.add_argument(
      "--next-only", action="store_true", help="leave the extra heads out"
    )
    parser.add_argument(
      "--dtype", default="", choices=("float32", "bfloat16"),
      help="default: that of the parameters",
    )  # fmt: skip
    parser.add_argument(
      "--max-shard-mb", type=int_from(1), default=5000, metavar="INT",
      help="the most MB of a file of weights; default 5000",
    )  # fmt: skip
    parser.add_argument("--step", type=int, help="checkpoint; default latest")
    add_places(parser, data=False)
    parser.set_defaults(run=_export)
    add_json(parser)


def _convert(args: argparse.Namespace, console: Any) -> Any:
  from mtpjax.jobs import convert

  return convert.run(
    args.kind, args.source, args.workdir, console, given_overrides(args),
    getattr(args, "base", None),
  )  # fmt: skip


def _export(args: argparse.Namespace, console: Any) -> Any:
  from mtpjax.jobs import export

  return export.run(
    args.kind, args.workdir, args.folder, console, args.next_only, args.dtype,
    args.max_shard_mb, args.step, args.base_path,
  )  # fmt: skip
