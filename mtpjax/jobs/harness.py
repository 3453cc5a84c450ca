"""`mtpjax evaluate --tasks`: tasks of the lm-evaluation-harness."""

import functools
import math
import numbers
import os
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import rich.console
import rich.table
import rich.text

from mtpjax import api
from mtpjax import config as config_lib
from mtpjax.errors import UserError
from mtpjax.evals.quality.harness import harness_model, import_harness
from mtpjax.progress import Progress, print_line

_BOOTSTRAPS = 1000
_NOTHING = "N/A"  # what the harness says of a value that there is not


def run(
  workdir: str | pathlib.Path,
  tasks: Sequence[str],
  limit: int | None,
  batch_size: int,
  console: rich.console.Console,
  step: int | None = None,
  base: str = "",
  max_length: int = 0,
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
    max_length: tokens the model sees at most; 0 takes its own length.

  Returns:
    {"step", "limit", "harness", "max_length", "cut_texts", "results": {task:
    {metric: value}}}; a metric without a value is None.

  Raises:
    UserError: no such work directory or checkpoint, lm_eval is not installed,
      an unknown task, or one that cannot be read or run.
  """
  if not tasks or not all(tasks):
    raise UserError("tasks: none are named; give --tasks NAME,NAME")
  # The harness would draw bars of its own into this one. It asks once, when it
  # is imported.
  os.environ.setdefault("TQDM_DISABLE", "1")
  # Standard errors by resampling would fork, which a process with JAX's
  # threads must not.
  os.environ["DISABLE_MULTIPROC"] = "1"
  with _Phases(console) as phases:
    phases.begin("loading the evaluation harness")
    lm_eval = import_harness()
    # Before the model is loaded, which takes longer than to find a wrong name.
    manager, objects = _load_tasks(tasks, phases)
    phases.begin(f"loading {workdir}")
    loaded = api.load(workdir, step, base=base)

    say = functools.partial(print_line, console)
    model = harness_model(loaded, batch_size, max_length, say, phases.note)
    phases.begin("making requests of documents")
    found = _evaluate(
      lm_eval,
      model=model,
      tasks=objects,
      task_manager=manager,  # else it would look at thousands of files again
      limit=limit if limit is None else min(limit, sys.maxsize),
      bootstrap_iters=_BOOTSTRAPS,
      log_samples=False,
    )
  results = {name: _plain(values) for name, values in found["results"].items()}
  console.print(_table(f"{workdir}, step {loaded.step}", results))
  for task, values in results.items():
    for name, value in values.items():
      if value is None and not _is_error(name):
        say(f"WARNING: task {task}: there is no value of {name}")
  return {
    "step": loaded.step,
    "limit": limit,
    "harness": lm_eval.__version__,
    "max_length": model.max_length,
    "cut_texts": model.cut_texts,
    "results": results,
  }


class _Phases:
  """Shows one thing after the other; a context manager."""

  def __init__(self, console: rich.console.Console):
    self._console = console
    self._text = ""
    self._now: Progress | None = None

  def begin(self, text: str, total: int | None = None) -> None:
    """Says what is happening from now on."""
    self._end()
    self._text = text
    self._now = Progress(self._console, text, total).__enter__()

  def note(self, text: str, done: int, total: int) -> None:
    """Says how far it is, and begins it if it is something new."""
    if text != self._text:
      self.begin(text, total)
    assert self._now is not None
    self._now.update(done)

  def _end(self) -> None:
    if self._now is not None:
      self._now.__exit__()
      self._now = None

  def __enter__(self) -> "_Phases":
    return self

  def __exit__(self, *_: Any) -> None:
    self._end()


def _load_tasks(names: Sequence[str], phases: _Phases) -> tuple[Any, list[Any]]:
  """Returns the harness's `TaskManager`, and tasks with their data sets."""
  from lm_eval.tasks import TaskManager

  are_files = [pathlib.Path(name).is_file() for name in names]
  for name, is_file in zip(names, are_files, strict=True):
    if not is_file and pathlib.Path(name).suffix in (".yaml", ".yml"):
      raise UserError(f"tasks: {name!r} is no such file; give its path")
  phases.begin("looking for tasks")
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
    phases.begin(f"reading {name} and its data")
    made = _load_task(manager, name)
    groups = list(made.get("groups", {}).values())
    # The first is the one that was asked for; it holds the others.
    objects += groups[:1] or list(made["tasks"].values())
  return manager, objects


def _load_task(manager: Any, name: str) -> Any:
  """Returns what the manager makes of a name; whatever fails is one line."""
  try:
    return manager.load([name])
  except ImportError as error:
    raise UserError(
      f"tasks: {name!r} needs a package that is not installed ({error}); "
      "install it, or leave the task out"
    ) from error
  except OSError as error:
    raise UserError(
      f"tasks: the data set of {name!r} cannot be read ({_one_line(error)}); "
      "a file must be there, and what is published is downloaded at first use, "
      "which needs a network and a folder to write to (HF_HOME)"
    ) from error
  except Exception as error:  # of any kind: the file says what is run
    raise UserError(
      f"tasks: {name!r} cannot be read ({_one_line(error)}); correct its file "
      "or its data, or leave the task out"
    ) from error


def _evaluate(lm_eval: Any, **arguments: Any) -> Any:
  """Runs the harness; what fails in a task, and not in the model, is one line.

  Tasks are programs: templates and functions that meet documents here.
  """
  try:
    return lm_eval.simple_evaluate(**arguments)
  except UserError:
    raise
  except Exception as error:
    if _is_ours(error):
      raise
    raise UserError(
      f"tasks: the evaluation harness cannot run them ({_one_line(error)}); "
      "compare the fields that the task's file names with those of its data"
    ) from error


def _is_ours(error: BaseException) -> bool:
  """Returns whether the model was at work when it happened."""
  own = harness_model.__globals__["__file__"]
  frame = error.__traceback__
  while frame is not None:
    if frame.tb_frame.f_code.co_filename == own:
      return True
    frame = frame.tb_next
  return False


def _one_line(error: BaseException) -> str:
  text = " ".join(str(error).split())
  line = f"{type(error).__name__}: {text}" if text else type(error).__name__
  # Data sets hide what is wrong with a file in what it led to.
  cause = error.__cause__
  return line if cause is None else f"{line}: {_one_line(cause)}"


def _plain(values: dict[str, Any]) -> dict[str, Any]:
  """Returns what is said of a task, by metric; what is not known is None."""
  plain: dict[str, Any] = {}
  for name, value in values.items():
    if isinstance(value, str) and value != _NOTHING:
      continue  # a name, not a metric
    is_known = isinstance(value, numbers.Real) and math.isfinite(value)
    # "acc,none" is the metric `acc` without a filter.
    plain[name.removesuffix(",none")] = _python(value) if is_known else None
  return plain


def _python(value: Any) -> Any:
  """Returns a number as JSON knows it; NumPy has its own."""
  return value.item() if hasattr(value, "item") else value


def _is_error(name: str) -> bool:
  return name.partition(",")[0].endswith("_stderr")


def _table(title: str, results: dict[str, Any]) -> rich.table.Table:
  table = rich.table.Table(title=rich.text.Text(title))
  for name in ("task", "metric"):
    table.add_column(name)
  for name in ("value", "standard error"):
    table.add_column(name, justify="right")
  for task, values in results.items():
    for name, value in values.items():
      metric, comma, rest = name.partition(",")
      if _is_error(name) or metric == "sample_len":
        continue
      error = values.get(f"{metric}_stderr{comma}{rest}")
      cells = (task, name, _shown(value), _shown(error))
      table.add_row(*map(rich.text.Text, cells))
  return table


def _shown(value: Any) -> str:
  return "none" if value is None else f"{value:.4f}"
