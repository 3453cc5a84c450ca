"""`mtpjax bench`: memory of the loss, speed of training and of decoding."""

import argparse
import functools
import pathlib
from typing import Any

from mtpjax.cli.arguments import (
  add_json,
  add_loads,
  add_overrides,
  add_places,
  given_overrides,
  int_from,
  list_of,
  names,
  override_config,
  write_known_figures,
)
from mtpjax.errors import UserError
from mtpjax.jobs.bench import defaults

# What each bench reads. Where there is --n, it replaces heads.offsets.
_BENCH_OVERRIDES = {
  "memory": (
    "model", "heads.kind", "heads.tap", "heads.matched", "loss.chunk_tokens",
    "loss.z_loss", "data.row_length", "train.batch_size",
  ),
  "train": (
    "model", "heads.kind", "heads.tap", "heads.matched", "loss.mode",
    "loss.chunk_tokens", "loss.z_loss", "optim", "mesh", "data.row_length",
    "train.batch_size", "train.accumulation", "train.peak_tflops",
  ),
  "decode": ("model", "heads"),
  "attention": ("model", "train.batch_size"),
}  # fmt: skip
_DEFAULTS = {
  "memory": defaults.MEMORY,
  "train": defaults.TRAIN,
  "decode": defaults.DECODE,
  "attention": defaults.ATTENTION,
}


def add(commands: Any) -> None:
  """Adds `bench memory`, `train`, `decode` and `attention`."""
  bench = commands.add_parser(
    "bench",
    help="memory of the loss, speed of training and of decoding",
    description="Benches of synthetic models of any size, set by overrides.",
  )
  kinds = bench.add_subparsers(dest="bench", metavar="BENCH", required=True)
  memory = kinds.add_parser(
    "memory", help="temporary bytes of the loss by number of offsets"
  )
  train = kinds.add_parser(
    "train", help="time of a step by number of offsets, parameters matched"
  )
  for parser in (memory, train):
    parser.add_argument(
      "--n", type=list_of(int, 1), default=(1, 2, 4, 8), metavar="INT,...",
      help="numbers of offsets; default 1,2,4,8",
    )  # fmt: skip
  decode = kinds.add_parser(
    "decode", help="what decoding modes gain, and where the time goes"
  )
  _add_decode(decode)
  attention = kinds.add_parser(
    "attention", help="time and memory of attention by length"
  )
  attention.add_argument(
    "--lengths", type=list_of(int, 1), default=(256, 1024, 4096),
    metavar="INT,...", help="rows; default 256,1024,4096",
  )  # fmt: skip
  attention.add_argument(
    "--implementations", type=names, default=("full", "blocks"),
    metavar="STR,...", help="full, blocks or cudnn; default full,blocks",
  )  # fmt: skip
  for parser, least, repeats in (
    (memory, 0, 0),
    (train, 1, 10),
    (decode, 1, 5),
    (attention, 1, 5),
  ):
    parser.add_argument(
      "--repeats",
      type=int_from(least),
      default=repeats,
      help=f"timed runs of each; default {repeats}",
    )
  for name, parser in kinds.choices.items():
    parser.set_defaults(run=_run)
    add_json(parser)
    add_overrides(parser, _BENCH_OVERRIDES[name], _DEFAULTS[name])


def _add_decode(decode: argparse.ArgumentParser) -> None:
  decode.add_argument(
    "workdir", nargs="?", help="of mtpjax train; default a random model"
  )
  add_loads(decode, (1, 4))
  decode.add_argument(
    "--modes",
    type=names,
    default=(),
    metavar="STR,...",
    help="of those of generate, and heads-idle (plain decoding while the heads "
    "run), compared with the first; default all that the heads allow",
  )
  decode.add_argument(
    "--tree",
    default="",
    metavar="STR",
    help="of mode tree: medusa-63, a branching per depth or a file; default "
    "4,2,1, as deep as the heads reach",
  )
  decode.add_argument(
    "--verifier",
    default="coupled",
    metavar="STR",
    help="of drafts at a temperature: coupled, rejection, block or typical; "
    "default coupled",
  )
  decode.add_argument(
    "--classes",
    type=names,
    default=(),
    metavar="STR,...",
    help="prompts of a run: code, prose, structured, chat, held-out; default "
    "held-out, or --prompts alone",
  )
  decode.add_argument(
    "--prompts",
    type=pathlib.Path,
    metavar="FILE",
    help='JSON Lines with "text" or "ids", and a "class" if you like',
  )
  decode.add_argument(
    "--prompt-length",
    type=int_from(1),
    default=64,
    help="tokens of a held-out or random prompt; default 64",
  )
  decode.add_argument(
    "--new-tokens",
    type=int_from(2),
    default=128,
    help="per prompt; default 128",
  )
  add_places(decode)
  decode.add_argument(
    "--figures",
    type=pathlib.Path,
    metavar="FOLDER",
    help="also measure passes by nodes, and draw figures (extra: figures)",
  )


def _run(args: argparse.Namespace, console: Any) -> Any:
  on_report = functools.partial(write_known_figures, args.json)
  if args.bench == "memory":
    from mtpjax.jobs.bench import memory

    config = override_config(defaults.MEMORY, args)
    return memory.run(config, console, args.n, args.repeats, on_report)
  if args.bench == "train":
    from mtpjax.jobs.bench import train

    config = override_config(defaults.TRAIN, args)
    return train.run(config, console, args.n, args.repeats, on_report)
  if args.bench == "attention":
    from mtpjax.jobs.bench import attention

    config = override_config(defaults.ATTENTION, args)
    return attention.run(
      config, console, args.lengths, args.implementations, args.repeats,
      on_report,
    )  # fmt: skip
  if args.workdir is not None and (given := list(given_overrides(args))):
    name = given[0].replace("_", "-")
    raise UserError(
      f"--{name}: a work directory has its own configuration; leave one out"
    )
  from mtpjax.jobs.bench import decode

  config = override_config(defaults.DECODE, args)
  settings = decode.Settings(
    args.batches, args.temperatures, args.modes, args.tree, args.verifier,
    args.classes, args.prompts, args.prompt_length, args.new_tokens,
    args.repeats, args.base_path, args.data_path,
  )  # fmt: skip
  return decode.run(
    config, console, args.workdir, settings, args.figures, on_report
  )
