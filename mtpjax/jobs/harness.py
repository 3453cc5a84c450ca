"""`mtpjax evaluate --tasks`: tasks of the lm-evaluation-harness."""

import math
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import rich.console
import rich.table

from mtpjax import api
from mtpjax import config as config_lib
from mtpjax.errors import UserError
from mtpjax.evals.harness import harness_model, import_harness

_BOOTSTRAPS = 1000


def run(
  workdir: str | pathlib.Path,
  tasks: Sequence[str],
  limit: int | None,
  batch_size: int,
  console: rich.console.Console,
  step: int | None = None,
  base: str = "",
) -> dict[str, Any]:
  """Evaluates a checkpoint on tasks of the harness.

  Args:
    workdir: of `mtpjax train`.
    tasks: names of tasks, groups or tags, or paths of YAML files of tasks.
    limit: documents of each task at most; None takes all.
    batch_size: texts scored at a time.
    console: gets a table.
    step: the checkpoint; None takes the latest.
    base: the model that heads were trained on; see `api.load`.

  Returns:
    {"step", "limit", "harness", "results": {task: {metric: value}}}.

  Raises:
    UserError: no such work directory or checkpoint, lm_eval is not installed,
      an unknown task, or one whose data set cannot be read.
  """
  # Before the model is loaded, which takes longer than to find a wrong name.
  lm_eval = import_harness()
  manager, objects = _load_tasks(tasks)
  loaded = api.load(workdir, step, base=base)
  # Standard errors by resampling would fork, which a process with JAX's
  # threads must not.
  os.environ["DISABLE_MULTIPROC"] = "1"
  found = lm_eval.simple_evaluate(
    model=harness_model(loaded, batch_size),
    tasks=objects,
    task_manager=manager,  # else it would look at thousands of files again
    limit=limit,
    bootstrap_iters=_BOOTSTRAPS,
    log_samples=False,
  )
  results = {name: _plain(values) for name, values in found["results"].items()}
  console.print(_table(f"{workdir}, step {loaded.step}", results))
  return {
    "step": loaded.step,
    "limit": limit,
    "harness": lm_eval.__version__,
    "results": results,
  }


def _load_tasks(names: Sequence[str]) -> tuple[Any, list[Any]]:
  """Returns the harness's `TaskManager`, and tasks with their data sets."""
  from lm_eval.tasks import TaskManager

  if not names:
    raise UserError("tasks: none are named; give --tasks NAME,NAME")
  are_files = [pathlib.Path(name).is_file() for name in names]
  # To find those that come with the harness takes many seconds.
  manager = TaskManager(include_defaults=not all(are_files))
  for name, is_file in zip(names, are_files, strict=True):
    if not is_file and name not in manager.all_tasks:
      raise UserError(
        f"tasks: {name!r} is no task of the evaluation harness"
        f"{config_lib.nearest(name, manager.all_tasks)}"
      )
  objects: list[Any] = []
  for name in names:
    try:
      made = manager.load([name])
    except ImportError as error:
      raise UserError(
        f"tasks: {name!r} needs a package that is not installed ({error}); "
        "install it, or leave the task out"
      ) from error
    except OSError as error:
      raise UserError(
        f"tasks: the data set of {name!r} cannot be read "
        f"({' '.join(str(error).split())}); it is downloaded at first use, "
        "which needs a network"
      ) from error
    groups = list(made.get("groups", {}).values())
    # The first is the one that was asked for; it holds the others.
    objects += groups[:1] or list(made["tasks"].values())
  return manager, objects


def _plain(values: dict[str, Any]) -> dict[str, Any]:
  """Returns what is said of a task, by metric; what is not known is None."""
  plain: dict[str, Any] = {}
  for name, value in values.items():
    if name == "alias":
      continue
    is_known = not isinstance(value, str) and not math.isnan(value)
    # "acc,none" is the metric `acc` without a filter.
    plain[name.removesuffix(",none")] = value if is_known else None
  return plain


def _table(title: str, results: dict[str, Any]) -> rich.table.Table:
  table = rich.table.Table(title=title)
  for name in ("task", "metric"):
    table.add_column(name)
  for name in ("value", "standard error"):
    table.add_column(name, justify="right")
  for task, values in results.items():
    for name, value in values.items():
      metric, comma, rest = name.partition(",")
      if metric.endswith("_stderr") or metric == "sample_len":
        continue
      error = values.get(f"{metric}_stderr{comma}{rest}")
      table.add_row(task, name, *map(_shown, (value, error)))
  return table


def _shown(value: Any) -> str:
  return "" if value is None else f"{value:.4f}"
