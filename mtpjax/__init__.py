"""Multi-token prediction for JAX and Flax.

load(workdir)             a trained model; `.generate(prompts)` continues text
prepare(config)           tokenises and packs the data of an experiment
train(config, workdir)    trains it, or goes on where it stopped
config, losses, heads     what training is made of, for loops of one's own
"""

import importlib
import os
import sys
import types
from typing import TYPE_CHECKING, Any

from mtpjax._version import __version__
from mtpjax.errors import UserError

if TYPE_CHECKING:
  from mtpjax import (
    api,
    checkpoint,
    config,
    data,
    decode,
    evals,
    heads,
    losses,
    model,
    parallel,
  )
  from mtpjax.api import Generation, Loaded, load

__all__ = [
  "Generation",
  "Loaded",
  "UserError",
  "__version__",
  "api",
  "checkpoint",
  "config",
  "data",
  "decode",
  "evals",
  "heads",
  "load",
  "losses",
  "model",
  "parallel",
  "prepare",
  "train",
]


def prepare(config: "config.Config") -> dict[str, Any]:
  """Tokenises and packs the data of an experiment, as `mtpjax prepare` does.

  Args:
    config: the experiment; its section `data` says all.

  Returns:
    The fingerprint of what is in `config.data.path`, and whether that was
    `kept`.

  Raises:
    UserError: a source that cannot be read, or text that is not UTF-8.
  """
  from mtpjax.jobs import prepare as job

  _require_config(config)
  return job.run(config, _console())


def train(
  config: "config.Config", workdir: str | os.PathLike[str]
) -> dict[str, Any]:
  """Trains an experiment, or goes on where it stopped, as `mtpjax train` does.

  The module `mtpjax.train`, with the parts that training is made of, is this
  function, too.

  Args:
    config: the experiment; `prepare` has prepared its data.
    workdir: where checkpoints and metrics go; what `load` takes.

  Returns:
    {"step", "workdir", "metrics"}: the last step, and its last metrics.

  Raises:
    UserError: the data is not prepared, the work directory is another run's,
      or the run diverged.
  """
  from mtpjax.jobs import train as job

  _require_config(config)
  return job.run(config, os.fspath(workdir), _console())


def _require_config(config: Any) -> None:
  from mtpjax import config as config_lib

  if not isinstance(config, config_lib.Config):
    raise UserError(
      f"config: {config_lib.shown(config)} is no mtpjax.config.Config; "
      "mtpjax.config.load_experiment(PATH) makes one of a file"
    )


def _console() -> Any:
  import rich.console

  # Standard output is the caller's.
  return rich.console.Console(stderr=True, markup=False, emoji=False)


if not TYPE_CHECKING:

  def __getattr__(name: str) -> Any:
    # JAX is imported when it is first needed: `mtpjax --help` is instant.
    if name in ("Generation", "Loaded", "load"):
      from mtpjax import api

      return getattr(api, name)
    if name in __all__:
      return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module 'mtpjax' has no attribute {name!r}")

  def __dir__() -> list[str]:
    return sorted(__all__)

  class _Train(types.ModuleType):
    """The module `mtpjax.train`, which is called like the function."""

    def __call__(self, config, workdir):
      return _train(config, workdir)

  class _Package(types.ModuleType):
    """This package: imports of the module leave the function in reach."""

    @property
    def train(self):
      return importlib.import_module(f"{__name__}.train")

    @train.setter
    def train(self, module):
      module.__class__ = _Train

  _Train.__call__.__doc__ = train.__doc__
  _train = globals().pop("train")
  sys.modules[__name__].__class__ = _Package
