"""The command `mtpjax`: reads arguments, calls a job."""

import argparse
import json
import os
import pathlib
import sys
import types
from collections.abc import Collection, Sequence
from typing import Any, NoReturn

from mtpjax import config as config_lib
from mtpjax._version import __version__
from mtpjax.errors import UserError


class _Parser(argparse.ArgumentParser):
  """Says what is wrong in one line."""

  def __init__(self, **kwargs: Any):
    super().__init__(**kwargs, allow_abbrev=False)

  def parse_known_args(self, *args: Any, **kwargs: Any) -> Any:
    """Stops at an unknown option, naming the nearest one there is."""
    found, unknown = super().parse_known_args(*args, **kwargs)
    if unknown:
      name = unknown[0].split("=")[0]
      close = config_lib.nearest(name, list(self._option_string_actions))
      raise UserError(f"{name}: no such option{close}")
    return found, unknown

  def error(self, message: str) -> NoReturn:
    """Raises what argparse would print below its usage."""
    raise UserError(f"{message}; see {self.prog} --help")


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


def _add_overrides(
  parser: argparse.ArgumentParser, only: Collection[str] | None = None
) -> None:
  """Adds one argument per configuration field, `--optim.peak-lr`.

  Args:
    parser: gets them.
    only: the sections and fields to add; None adds all.
  """
  groups: dict[str, Any] = {}
  for path, field in config_lib.fields():
    section = path.split(".")[0]
    if only is not None and section not in only and path not in only:
      continue
    if section not in groups:
      groups[section] = parser.add_argument_group(f"override {section}")
    groups[section].add_argument(
      "--" + path.replace("_", "-"),
      dest=path,
      metavar=config_lib.kind_name(field.type).upper(),
      default=argparse.SUPPRESS,
      help=field.metadata["help"].replace("%", "%%"),
    )


def _experiment_parser(commands: Any, name: str, help: str) -> _Parser:
  parser = commands.add_parser(name, help=help, description=help)
  parser.add_argument("experiment", help="a Python file, see experiments/")
  parser.add_argument(
    "--variant", default="", help="passed to the experiment's config()"
  )
  _add_overrides(parser)
  return parser


def _add_json(parser: argparse.ArgumentParser) -> None:
  parser.add_argument(
    "--json", type=pathlib.Path, metavar="PATH", help="also write figures here"
  )


def _build_parser() -> _Parser:
  parser = _Parser(
    prog="mtpjax",
    description="Train models that predict several future tokens, and decode "
    "with them. Begin with: mtpjax prepare experiments/quickstart.py",
  )
  parser.add_argument("--version", action="version", version=__version__)
  commands = parser.add_subparsers(
    dest="command", metavar="COMMAND", required=True
  )
  prepare = _experiment_parser(
    commands, "prepare", "tokenise and pack the data of an experiment"
  )
  _add_json(prepare)
  train = _experiment_parser(
    commands, "train", "train an experiment, or go on where it stopped"
  )
  train.add_argument(
    "--workdir", required=True, help="where checkpoints and metrics go"
  )
  _add_json(train)
  evaluate = commands.add_parser(
    "evaluate", help="loss and accuracy per offset of a checkpoint"
  )
  evaluate.add_argument("workdir", help="of mtpjax train")
  evaluate.add_argument("--step", type=int, help="checkpoint; default latest")
  evaluate.add_argument(
    "--split", default="validation", choices=("validation", "train")
  )
  evaluate.add_argument(
    "--batches",
    type=_int_from(0),
    default=0,
    help="at most so many; default all rows",
  )
  evaluate.add_argument(
    "--data-path", default="", help="prepared rows; default those of the run"
  )
  _add_json(evaluate)
  evaluate.add_argument(
    "--decode",
    action="store_true",
    help="also decode held-out prompts, plainly and self-speculatively",
  )
  _add_generate(commands)
  _add_bench(commands)
  _add_tokenizer(commands)
  return parser


def _require_at_least(least: int, value: float) -> None:
  if not value >= least:
    raise argparse.ArgumentTypeError(f"{value} is not {least} or more")


def _int_from(least: int) -> Any:
  """Returns an argument type: an integer not below `least`."""

  def parse(text: str) -> int:
    value = int(text)
    _require_at_least(least, value)
    return value

  parse.__name__ = "int"
  return parse


def _list_of(kind: Any, least: int | None = None) -> Any:
  """Returns an argument type: values, none below `least`, at least one."""
  as_tuple = types.GenericAlias(tuple, (kind, ...))

  def parse(text: str) -> tuple[Any, ...]:
    values = config_lib.parse_value(text, as_tuple)
    if not values:
      raise argparse.ArgumentTypeError(f"{text!r} names none")
    if least is not None:
      for value in values:
        _require_at_least(least, value)
    return values

  parse.__name__ = config_lib.kind_name(as_tuple)
  return parse


def _modes(text: str) -> tuple[str, ...]:
  modes = tuple(text.split(","))
  for mode in modes:
    if mode not in config_lib.DECODE_MODES:
      raise argparse.ArgumentTypeError(
        f"{mode!r} is not one of {', '.join(config_lib.DECODE_MODES)}"
      )
  return modes


def _add_bench(commands: Any) -> None:
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
      "--n", type=_list_of(int, 1), default=(1, 2, 4, 8), metavar="INT,...",
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
      type=_list_of(kind, least),
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
    type=_int_from(1),
    default=64,
    help="tokens; default 64",
  )
  decode.add_argument(
    "--new-tokens",
    type=_int_from(2),
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
      type=_int_from(least),
      default=repeats,
      help=f"timed runs of each; default {repeats}",
    )
  for name, parser in kinds.choices.items():
    _add_json(parser)
    _add_overrides(parser, _BENCH_OVERRIDES[name])


def _add_tokenizer(commands: Any) -> None:
  tokenizer = commands.add_parser("tokenizer", help="train a tokenizer")
  kinds = tokenizer.add_subparsers(
    dest="tokenizer", metavar="ACTION", required=True
  )
  train = kinds.add_parser("train", help="train a byte-level BPE")
  train.add_argument(
    "--sources", type=_list_of(str), default=("python-stdlib",),
    metavar="STR;...", help="as --data.sources; default python-stdlib",
  )  # fmt: skip
  train.add_argument(
    "--vocab-size", type=int, default=8192, help="default 8192"
  )
  train.add_argument(
    "--replace-invalid-utf8",
    action="store_true",
    help="read bytes that are not UTF-8 as U+FFFD instead of stopping",
  )
  train.add_argument(
    "--out", required=True, type=pathlib.Path, help="a tokenizer.json to write"
  )


def _add_generate(commands: Any) -> None:
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
    help='JSON Lines with "text" or "ids", decoded in batches',
  )
  parser.add_argument("--step", type=int, help="checkpoint; default latest")
  parser.add_argument(
    "--ignore-eos", action="store_true", help="go on whatever comes"
  )
  for path, field in config_lib.fields():
    section, name = path.split(".")
    if section == "decode":
      parser.add_argument(
        "--" + name.replace("_", "-"),
        dest=name,
        metavar=config_lib.kind_name(field.type).upper(),
        default=argparse.SUPPRESS,
        help=f"{field.metadata['help']}; default that of the run",
      )
  _add_json(parser)


def _overrides(args: argparse.Namespace) -> dict[str, str]:
  paths = {path for path, _ in config_lib.fields()}
  return {k: v for k, v in vars(args).items() if k in paths}


def _override(
  config: config_lib.Config, args: argparse.Namespace
) -> config_lib.Config:
  return config_lib.override(config, _overrides(args))


def _read_config(args: argparse.Namespace) -> config_lib.Config:
  return _override(
    config_lib.load_experiment(args.experiment, args.variant), args
  )


def _decode_overrides(args: argparse.Namespace) -> dict[str, Any]:
  paths = [p for p, _ in config_lib.fields() if p.startswith("decode.")]
  given = {p: vars(args)[p[7:]] for p in paths if p[7:] in vars(args)}
  decode = config_lib.override(config_lib.Config(), given).decode
  return {p[7:]: getattr(decode, p[7:]) for p in given}


def _run(args: argparse.Namespace, console: Any) -> Any:
  # Jobs are imported where they run: `mtpjax --help` needs no JAX.
  if args.command == "prepare":
    from mtpjax.jobs import prepare

    return prepare.run(_read_config(args), console)
  if args.command == "train":
    from mtpjax.jobs import train

    return train.run(_read_config(args), args.workdir, console)
  if args.command == "evaluate":
    from mtpjax.jobs import evaluate

    return evaluate.run(
      args.workdir, console, args.step, args.split, args.batches,
      args.data_path, args.decode,
    )  # fmt: skip
  if args.command == "generate":
    import rich.console

    from mtpjax.jobs import generate

    # Standard output is for the text alone.
    console = rich.console.Console(stderr=True)
    return generate.run(
      args.workdir, console, args.prompt, args.prompts, args.step,
      args.ignore_eos, not args.json, **_decode_overrides(args),
    )  # fmt: skip
  if args.command == "tokenizer":
    from mtpjax.jobs import tokenizer

    return tokenizer.train(
      args.sources, args.vocab_size, args.out, console,
      args.replace_invalid_utf8,
    )  # fmt: skip
  return _run_bench(args, console)


def _run_bench(args: argparse.Namespace, console: Any) -> Any:
  if args.bench == "memory":
    from mtpjax.jobs.bench import memory

    config = _override(memory.default_config(), args)
    return memory.run(config, console, args.n, args.repeats)
  if args.bench == "train":
    from mtpjax.jobs.bench import train

    config = _override(train.default_config(), args)
    return train.run(config, console, args.n, args.repeats)
  if args.workdir is not None and (given := list(_overrides(args))):
    name = given[0].replace("_", "-")
    raise UserError(
      f"--{name}: a work directory has its own configuration; leave one out"
    )
  from mtpjax.jobs.bench import decode

  config = _override(decode.default_config(), args)
  return decode.run(
    config, console, args.workdir, args.batches, args.temperatures,
    args.modes, args.prompt_length, args.new_tokens, args.repeats,
  )  # fmt: skip


def _check_writable(path: pathlib.Path) -> None:
  """Raises UserError if `path` cannot be written; makes nothing."""
  path = path.absolute()
  there = next(p for p in (path, *path.parents) if os.path.exists(p))
  if there.is_dir() == (there == path) or not os.access(there, os.W_OK):
    raise UserError(
      f"--json {path}: cannot be written, because of {there}; give the path "
      "of a file"
    )


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command line.

  Args:
    argv: the arguments; those of the process if None.

  Returns:
    The exit status: 0, or 2 for a mistake of the user's.
  """
  import rich.console

  console = rich.console.Console()
  try:
    args = _build_parser().parse_args(argv)
    if getattr(args, "json", None):
      _check_writable(args.json)
    figures = _run(args, console)
    if getattr(args, "json", None):
      args.json.parent.mkdir(parents=True, exist_ok=True)
      args.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0
  except UserError as error:
    print(f"mtpjax: error: {error}", file=sys.stderr)
    return 2
