"""`mtpjax convert` and `mtpjax export`."""

import argparse
from typing import Any

from mtpjax.cli.arguments import (
  add_json,
  add_overrides,
  add_places,
  given_overrides,
  int_from,
)

_SOURCES = {
  "hf": ("DIR", "a Hugging Face folder: config.json, safetensors, tokenizer"),
  "gguf": ("FILE", "a GGUF file, its tokenizer included"),
  "meta": ("DIR", "Meta's own layout: consolidated.*.pth and params.json"),
}


def add(commands: Any) -> None:
  """Adds `convert` and `export`."""
  convert = commands.add_parser(
    "convert", help="make a work directory of a published checkpoint"
  )
  kinds = convert.add_subparsers(dest="kind", metavar="KIND", required=True)
  for kind, (metavar, help) in _SOURCES.items():
    parser = kinds.add_parser(kind, help=help, description=help)
    parser.add_argument("source", metavar=metavar, help=help)
    _add_workdir(parser)
    add_overrides(
      parser,
      (
        "mesh", "model.dtype", "model.param_dtype", "model.remat",
        "model.attention",
      ),
    )  # fmt: skip
    parser.set_defaults(run=_convert)
    add_json(parser)
  _add_medusa(kinds)
  _add_export(commands)


def _add_medusa(kinds: Any) -> None:
  help = "Medusa heads, on a model converted before"
  parser = kinds.add_parser("medusa", help=help, description=help)
  parser.add_argument(
    "heads", metavar="HEADS", help="medusa_lm_head.* or a folder with one"
  )
  parser.add_argument(
    "base", metavar="BASE_WORKDIR", help="of the model they were trained on"
  )
  _add_workdir(parser)
  parser.set_defaults(run=_convert_medusa)
  add_json(parser)


def _add_workdir(parser: argparse.ArgumentParser) -> None:
  parser.add_argument(
    "workdir", metavar="WORKDIR", help="the work directory to make"
  )


def _add_export(commands: Any) -> None:
  export = commands.add_parser(
    "export", help="make a folder other programs read of a work directory"
  )
  kinds = export.add_subparsers(dest="kind", metavar="KIND", required=True)
  help = "a Hugging Face folder, of the family that has the model's features"
  hf = kinds.add_parser("hf", help=help, description=help)
  hf.add_argument("workdir", metavar="WORKDIR", help="of train or convert")
  hf.add_argument("folder", metavar="DIR", help="the folder to make")
  hf.add_argument(
    "--next-only", action="store_true", help="leave the extra heads out"
  )
  hf.add_argument(
    "--dtype", default="", choices=("float32", "bfloat16"),
    help="default: that of the parameters",
  )  # fmt: skip
  hf.add_argument(
    "--max-shard-mb", type=int_from(1), default=5000, metavar="INT",
    help="the most MB of a file of weights; default 5000",
  )  # fmt: skip
  hf.add_argument("--step", type=int, help="checkpoint; default latest")
  add_places(hf, data=False)
  hf.set_defaults(run=_export)
  add_json(hf)


# Jobs are imported where they run: `mtpjax --help` needs no JAX.
def _convert(args: argparse.Namespace, console: Any) -> Any:
  from mtpjax.jobs import convert

  return convert.run(
    args.kind, args.source, args.workdir, console, given_overrides(args)
  )


def _convert_medusa(args: argparse.Namespace, console: Any) -> Any:
  from mtpjax.jobs import convert

  return convert.run_medusa(args.heads, args.base, args.workdir, console)


def _export(args: argparse.Namespace, console: Any) -> Any:
  from mtpjax.jobs import export

  return export.run(
    args.workdir, args.folder, console, args.next_only, args.dtype,
    args.max_shard_mb, args.step, args.base_path,
  )  # fmt: skip
