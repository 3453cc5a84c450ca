"""`mtpjax bench decode`: what decoding modes gain, and where the time goes."""

import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
import rich.console

from mtpjax import parallel
from mtpjax.budget import Calibration
from mtpjax.config import Config
from mtpjax.decode import Request, Spec, Stages, decode_params
from mtpjax.decode.batch import Packer
from mtpjax.decode.tree_files import tree_to_dict
from mtpjax.errors import UserError
from mtpjax.evals import (
  class_requests,
  cost_trees,
  default_modes,
  measure_decoding,
  measure_pass_costs,
  mode_specs,
)
from mtpjax.evals.figures import (
  require_matplotlib,
  save_acceptance_figure,
  save_cost_figure,
)
from mtpjax.heads import MultiTokenModel
from mtpjax.jobs.report import OnReport, make_report, print_rows
from mtpjax.progress import Progress, print_line

# (batch, temperature) -> requests of all classes.
MakeRequests = Callable[[int, float], list[Request]]

_WIDTH = 100
_COLUMNS = {
  "class": "class",
  "mode": "mode",
  "tokens_per_pass": "tok/pass",
  "tokens_per_sec": "tok/s",
  "speed_over_first": "speed",
  "token_p50_secs": "p50",
  "token_p95_secs": "p95",
  "pass_secs": "pass",
  "trunk_secs": "trunk",
  "draft_secs": "draft",
  "kept": "kept",
  "outputs_identical": "same",
}


@dataclasses.dataclass(frozen=True)
class Settings:
  """What is compared, on what.

  Attributes:
    batches: prompts decoded together.
    temperatures: 0 is greedy.
    modes: the first is what others are compared with; empty takes all that the
      heads allow.
    tree: of mode tree; "" is 4,2,1, cut to the reach of the heads.
    verifier: of drafts at a temperature.
    classes: of prompts, see `jobs.bench.prompts`; empty takes held-out rows,
      unless there are prompts.
    prompts: a file of prompts.
    prompt_length: tokens of a held-out or random prompt.
    new_tokens: tokens generated per prompt.
    repeats: rounds; times are medians.
    base: the model that heads were trained on; see `api.load`.
    data_path: prepared rows; empty takes those of the run.
  """

  batches: Sequence[int] = (1, 4)
  temperatures: Sequence[float] = (0.0,)
  modes: Sequence[str] = ()
  tree: str = ""
  verifier: str = "coupled"
  classes: Sequence[str] = ()
  prompts: pathlib.Path | None = None
  prompt_length: int = 64
  new_tokens: int = 128
  repeats: int = 5
  base: str = ""
  data_path: str = ""


def run(
  config: Config,
  console: rich.console.Console,
  workdir: str | pathlib.Path | None = None,
  settings: Settings | None = None,
  figures: pathlib.Path | None = None,
  on_report: OnReport | None = None,
) -> dict[str, Any]:
  """Measures a trained model on prompts by class, or a random one.

  Args:
    config: the random model; not used with a `workdir`.
    console: gets a table.
    workdir: of `mtpjax train`.
    settings: what is compared, on what.
    figures: a folder for figures; the passes of larger and larger trees are
      measured for them, too.
    on_report: called with what is returned as far as it is known, whenever
      there are new rows.

  Returns:
    `rows`: per class, batch, temperature and mode the fields of
    `evals.ModeSpeed`, in one level. `trees`: per batch, temperature and mode
    parents and ranks of its nodes, in the order of `acceptance_by_node`. With
    figures `pass_costs`: per batch [nodes, seconds].

  Raises:
    UserError: a mode, tree, verifier, class or prompt that cannot be, before
      anything is measured; no matplotlib to draw figures with.
  """
  settings = settings or Settings()
  if figures is not None:
    require_matplotlib()
    if any(p.exists() and not p.is_dir() for p in (figures, *figures.parents)):
      raise UserError(f"--figures {figures}: is no folder; give another one")
  if workdir is None:
    model, params, make_requests = _random_model(config, settings)
  else:
    with Progress(console, f"loading {workdir}"):
      config, model, params, make_requests = _trained_model(workdir, settings)
  modes = tuple(settings.modes) or default_modes(model, settings.verifier)
  calibration = _calibration(workdir) if "auto" in modes else None
  plan = _plan(model, modes, settings, make_requests, calibration)
  if not console.is_terminal:  # a log, where nothing must be cut to 80 columns
    console.width = max(console.width, _WIDTH)
  report = make_report(
    [],
    config,
    dataclasses.asdict(settings)
    | {
      "workdir": str(workdir) if workdir else None,
      "prompts": str(settings.prompts) if settings.prompts else None,
      "modes": list(modes),
    },
  )
  report["trees"] = [
    load.named
    | {mode: tree_to_dict(spec.tree) for mode, spec in load.specs.items()}
    for load in plan
  ]
  n_rounds = len(modes) * (settings.repeats + 1)
  for number, load in enumerate(plan):
    text = f"decoding, {load}, rounds"
    before = number * n_rounds
    rounds = itertools.count(before + 1)
    with Progress(console, text, len(plan) * n_rounds, before) as progress:
      speeds = measure_decoding(
        params, load.requests, load.specs, load.batch, settings.repeats,
        on_round=functools.partial(_tell, progress, rounds),
      )  # fmt: skip
    new = [load.named | speed.to_dict() for speed in speeds]
    print_rows(
      console,
      f"{load}; p50, p95, pass, trunk and draft are milliseconds",
      [_readable(row) for row in new],
      _COLUMNS,
    )
    report["rows"] += new
    if on_report is not None:
      on_report(report)
  if figures is not None:
    report["pass_costs"] = _pass_costs(
      model, params, make_requests, settings, console
    )
    _draw(report["rows"], report["pass_costs"], figures)
    print_line(console, f"figures: {figures}")
  return report


@dataclasses.dataclass(frozen=True)
class _Load:
  """Requests to decode together, and the programs that do, by mode."""

  batch: int
  temperature: float
  specs: dict[str, Spec]
  requests: list[Request]

  @property
  def named(self) -> dict[str, Any]:
    """What distinguishes its rows from those of other loads."""
    return {"batch": self.batch, "temperature": self.temperature}

  def __str__(self) -> str:
    return f"batch {self.batch}, temperature {self.temperature:g}"


def _plan(
  model: MultiTokenModel,
  modes: Sequence[str],
  settings: Settings,
  make_requests: MakeRequests,
  calibration: Calibration | None,
) -> list[_Load]:
  """Returns what is decoded, one load after the other."""
  plan = []
  for batch, temperature in itertools.product(
    settings.batches, settings.temperatures
  ):
    requests = make_requests(batch, temperature)
    chosen = None
    if calibration is not None:
      chosen = calibration.level(batch, temperature)
    specs = mode_specs(
      model, modes, Stages.of(requests), settings.tree, settings.verifier,
      chosen,
    )  # fmt: skip
    Packer.of(specs[modes[0]], requests, ())  # says what it cannot run
    plan.append(_Load(batch, temperature, specs, requests))
  return plan


def _tell(progress: Progress, rounds: Iterator[int]) -> None:
  progress.update(next(rounds))


def _pass_costs(
  model: MultiTokenModel,
  params: Any,
  make_requests: MakeRequests,
  settings: Settings,
  console: rich.console.Console,
) -> dict[str, list[tuple[int, float]]]:
  """Measures passes of larger and larger trees, for each batch."""
  costs = {}
  for batch in settings.batches:
    requests = make_requests(batch, settings.temperatures[0])
    # As many rows as the batch has, whatever prompts there are.
    requests = [requests[i % len(requests)] for i in range(batch)]
    with Progress(console, f"measuring passes by their nodes, batch {batch}"):
      costs[f"batch {batch}"] = measure_pass_costs(
        model, params, requests, cost_trees(model), settings.repeats
      )
  return costs


def _calibration(workdir: str | pathlib.Path | None) -> Calibration | None:
  if workdir is None:
    return None  # mode auto will say what it lacks
  # Only here: random models need neither data nor checkpoints installed.
  from mtpjax.checkpoint import WorkDir

  return Calibration.of_this_device(WorkDir(workdir).calibration)


def _readable(row: dict[str, Any]) -> dict[str, str]:
  """Returns short cells, times in milliseconds."""
  cells = {}
  for name in _COLUMNS:
    value = row[name]
    if name == "tokens_per_sec":
      cells[name] = f"{value:,.0f}"
    elif name.endswith("_secs"):
      cells[name] = f"{1e3 * value:.3g}"
    elif name == "outputs_identical":
      cells[name] = "-" if value is None else "yes" if value else "NO"
    elif name in ("tokens_per_pass", "speed_over_first", "kept"):
      cells[name] = f"{value:.2f}"
    else:
      cells[name] = str(value)
  return cells


def _draw(
  rows: list[dict[str, Any]],
  costs: dict[str, list[tuple[int, float]]],
  folder: pathlib.Path,
) -> None:
  # How often drafts are accepted hardly depends on the batch.
  batch = rows[0]["batch"]
  panels: dict[str, dict[str, list[float]]] = {}
  for row in rows:
    panel = panels.setdefault(f"temperature {row['temperature']:g}", {})
    if row["batch"] == batch and row["acceptance_by_offset"]:
      panel[f"{row['class']}, {row['mode']}"] = row["acceptance_by_offset"]
  save_acceptance_figure(folder / "acceptance.png", panels)
  save_cost_figure(folder / "pass_costs.png", costs)


def _random_model(
  config: Config, settings: Settings
) -> tuple[MultiTokenModel, Any, MakeRequests]:
  for name, given in (
    ("--classes", settings.classes),
    ("--prompts", settings.prompts),
    ("--base.path", settings.base),
    ("--data-path", settings.data_path),
  ):
    if given:
      raise UserError(
        f"{name}: a random model has nothing to do with it; name a work "
        "directory"
      )
  mesh = parallel.single_device_mesh()
  model = MultiTokenModel(config.model, config.heads, mesh)
  params = decode_params(model, model.init(jax.random.key(0)))

  def make_requests(batch: int, temperature: float) -> list[Request]:
    prompts = np.random.default_rng(0).integers(
      0, config.model.vocab_size, (batch, settings.prompt_length)
    )
    return class_requests(
      {"random": prompts.tolist()}, settings.new_tokens, frozenset(),
      temperature,
    )  # fmt: skip

  return model, params, make_requests


def _trained_model(
  workdir: str | pathlib.Path, settings: Settings
) -> tuple[Config, MultiTokenModel, Any, MakeRequests]:
  from mtpjax import api
  from mtpjax.jobs.bench.prompts import CLASSES, trained_requests

  classes = tuple(dict.fromkeys(settings.classes))
  for name in classes:
    if name not in CLASSES:
      raise UserError(
        f"--classes: {name!r} is not one of {', '.join(CLASSES)}; name a file "
        "of other prompts with --prompts"
      )
  if not classes and settings.prompts is None:
    classes = ("held-out",)
  loaded = api.load(workdir, base=settings.base)

  def make_requests(batch: int, temperature: float) -> list[Request]:
    return trained_requests(
      loaded, classes, settings.prompts, batch, settings.prompt_length,
      settings.new_tokens, temperature, settings.data_path,
    )  # fmt: skip

  return loaded.config, loaded.model, loaded.decode_params, make_requests
