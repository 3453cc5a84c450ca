"""`mtpjax bench`: memory of the loss, speed of training and of decoding."""

import argparse
from typing import Any

from mtpjax import config as config_lib
from mtpjax.cli.arguments import (
  add_json,
  add_overrides,
  given_overrides,
  int_from,
  list_of,
  override_config,
)
from mtpjax.errors import UserError

# What each bench reads. Where there is --n, it replaces heads.offsets.
_BENCH_OVERRIDES = {
  "memory": (
    "model", "heads.kind", "heads.matched", "loss.chunk_tokens", "loss.z_loss",
    "data.row_length", "train.batch_size",
  ),
  "train": (
    "model", "heads.kind", "heads.tap", "heads.matched", "loss.mode",
    "loss.chunk_tokens", "loss.z_loss", "optim", "mesh", "data.row_length",
    "train.batch_size", "train.accumulation", "train.peak_tflops",
  ),
  "decode": ("model", "heads"),
}  # fmt: skip


def _modes(text: str) -> tuple[str, ...]:
  modes = tuple(text.split(","))
  for mode in modes:
    if mode not in config_lib.DECODE_MODES:
      raise argparse.ArgumentTypeError(
        f"{mode!r} is not one of {', '.join(config_lib.DECODE_MODES)}"
      )
  return modes


def add(commands: Any) -> None:
  """Adds `bench memory`, `bench train` and `bench decode`."""
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
    "decode", help="tokens per pass and per second, pass by pass"
  )
  decode.add_argument(
    "workdir", nargs="?", help="of mtpjax train; default a random model"
  )
  for name, kind, least, default, text in (
    ("batches", int, 1, (1, 4), "prompts decoded together"),
    ("temperatures", float, 0, (0.0,), "0 is greedy"),
  ):
    decode.add_argument(
      f"--{name}",
      type=list_of(kind, least),
      default=default,
      metavar=f"{kind.__name__.upper()},...",
      help=f"{text}; default {','.join(map(str, default))}",
    )
  decode.add_argument(
    "--modes",
    type=_modes,
    default=config_lib.DECODE_MODES,
    metavar="STR,...",
    help="compared with the first; default next,chain",
  )
  decode.add_argument(
    "--prompt-length",
    type=int_from(1),
    default=64,
    help="tokens; default 64",
  )
  decode.add_argument(
    "--new-tokens",
    type=int_from(2),
    default=128,
    help="per prompt; default 128",
  )
  for parser, least, repeats in (
    (memory, 0, 0),
    (train, 1, 10),
    (decode, 1, 5),
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
    add_overrides(parser, _BENCH_OVERRIDES[name])


def _run(args: argparse.Namespace, console: Any) -> Any:
  if args.bench == "memory":
    from mtpjax.jobs.bench import memory

    config = override_config(memory.default_config(), args)
    return memory.run(config, console, args.n, args.repeats)
  if args.bench == "train":
    from mtpjax.jobs.bench import train

    config = override_config(train.default_config(), args)
    return train.run(config, console, args.n, args.repeats)
  if args.workdir is not None and (given := list(given_overrides(args))):
    name = given[0].replace("_", "-")
    raise UserError(
      f"--{name}: a work directory has its own configuration; leave one out"
    )
  from mtpjax.jobs.bench import decode

  config = override_config(decode.default_config(), args)
  return decode.run(
    config, console, args.workdir, args.batches, args.temperatures,
    args.modes, args.prompt_length, args.new_tokens, args.repeats,
  )  # fmt: skip
