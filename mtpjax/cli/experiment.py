"""Commands that begin with an experiment, and `mtpjax evaluate`."""

import argparse
from typing import Any

from mtpjax import config as config_lib
from mtpjax.cli.arguments import (
  Parser,
  add_json,
  add_overrides,
  add_places,
  int_from,
  names,
  override_config,
)
from mtpjax.errors import UserError


def _experiment_parser(commands: Any, name: str, help: str) -> Parser:
  parser = commands.add_parser(
    name,
    help=help,
    description=f"{help[0].upper()}{help[1:]}. Fields of the experiment are "
    "overridden by their paths; the defaults shown are those of fields that "
    "it leaves out.",
  )
  parser.add_argument(
    "experiment",
    help="a Python file, or a built-in experiment that `mtpjax list` shows",
  )
  parser.add_argument(
    "--variant",
    default="",
    help="passed to the experiment's config(); default none",
  )
  # The experiment's own values go before them.
  add_overrides(parser, defaults=config_lib.Config())
  return parser


def _read_config(args: argparse.Namespace) -> config_lib.Config:
  return override_config(
    config_lib.load_experiment(args.experiment, args.variant), args
  )


def add(commands: Any) -> None:
  """Adds `prepare`, `train` and `evaluate`."""
  prepare = _experiment_parser(
    commands, "prepare", "tokenise and pack the data of an experiment"
  )
  prepare.set_defaults(run=_prepare)
  add_json(prepare)
  train = _experiment_parser(
    commands, "train", "train an experiment, or go on where it stopped"
  )
  train.add_argument(
    "--workdir", required=True, help="where checkpoints and metrics go"
  )
  train.set_defaults(run=_train)
  add_json(train)
  evaluate = commands.add_parser(
    "evaluate", help="loss and accuracy per offset of a checkpoint"
  )
  evaluate.add_argument("workdir", help="of mtpjax train")
  evaluate.add_argument("--step", type=int, help="checkpoint; default latest")
  evaluate.add_argument(
    "--split",
    default="validation",
    choices=("validation", "train"),
    help="rows to evaluate on; default validation",
  )
  evaluate.add_argument(
    "--batches",
    type=int_from(0),
    default=0,
    help="at most so many; default all rows",
  )
  add_places(evaluate)
  evaluate.add_argument(
    "--decode",
    action="store_true",
    help="also decode held-out prompts, plainly and with drafts; default not",
  )
  evaluate.add_argument(
    "--classes",
    type=names,
    default=(),
    metavar="STR,...",
    help="instead: what heads and drafts gain on prompts of these classes: "
    "code, prose, structured, chat",
  )
  evaluate.add_argument(
    "--tasks",
    type=names,
    default=(),
    metavar="STR,...",
    help="instead: tasks of the lm-evaluation-harness, NAME,NAME or YAML files "
    "(extra: eval)",
  )
  evaluate.add_argument(
    "--limit",
    type=int_from(1),
    help="documents of each of --tasks at most; default all",
  )
  evaluate.add_argument(
    "--batch-size",
    type=int_from(1),
    default=8,
    help="texts of --tasks scored at a time; default 8",
  )
  evaluate.add_argument(
    "--max-length",
    type=int_from(1),
    default=0,
    help="tokens of a text that --tasks let the model see; default its own",
  )

  def run_evaluate(args: argparse.Namespace, console: Any) -> Any:
    _require_heard(args, evaluate)
    return _evaluate(args, console)

  evaluate.set_defaults(run=run_evaluate)
  add_json(evaluate)


# Jobs are imported where they run: `mtpjax --help` needs no JAX.
def _prepare(args: argparse.Namespace, console: Any) -> Any:
  from mtpjax.jobs import prepare

  return prepare.run(_read_config(args), console)


def _train(args: argparse.Namespace, console: Any) -> Any:
  from mtpjax.jobs import train

  return train.run(_read_config(args), args.workdir, console)


# What `evaluate` does, by the option that asks for it, and what it listens to
# then; "" is without.
_EVALUATE_OPTIONS = {
  "tasks": ("limit", "batch_size", "max_length"),
  "classes": (),
  "": ("split", "batches", "data_path", "decode"),
}


def _require_heard(args: argparse.Namespace, parser: Parser) -> None:
  """Raises UserError for an option that would change nothing."""
  asked = [name for name in ("tasks", "classes") if getattr(args, name)]
  if len(asked) > 1:
    raise UserError("--tasks, --classes: give one of them; each is a report")
  variant = asked[0] if asked else ""
  for other, options in _EVALUATE_OPTIONS.items():
    for name in options:
      if other == variant or getattr(args, name) == parser.get_default(name):
        continue
      option = "--" + name.replace("_", "-")
      if other:
        raise UserError(f"{option}: is for --{other}, which is not given")
      raise UserError(f"{option}: is of no use with --{variant}; leave it out")


def _evaluate(args: argparse.Namespace, console: Any) -> Any:
  if args.tasks:
    from mtpjax.jobs import harness

    return harness.run(
      args.workdir, args.tasks, args.limit, args.batch_size, console, args.step,
      args.base_path, args.max_length,
    )  # fmt: skip
  from mtpjax.jobs import evaluate

  return evaluate.run(
    args.workdir, console, args.step, args.split, args.batches,
    args.data_path, args.decode, args.classes, args.base_path,
  )  # fmt: skip
