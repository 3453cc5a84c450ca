"""What an experiment is: frozen dataclasses, files and typed overrides.

An experiment file defines `config() -> Config` (or `config(variant)`), which
returns a complete configuration. The command line overrides single fields by
their path, `--optim.peak-lr 3e-4`; a name that does not exist is an error.

A field marked `may_change` may differ when a run is resumed. All others are
the identity of a run: with another value it would be another run.
"""

from mtpjax.config.builtin import (
  BuiltIn,
  built_in_experiments,
  experiment_file,
)
from mtpjax.config.decode import Decode
from mtpjax.config.experiment import (
  Config,
  config_from_dict,
  differences,
  fields,
  override,
  read_json,
  write_json,
)
from mtpjax.config.files import load_config, load_experiment
from mtpjax.config.sampling import NUMBERS, Sampling
from mtpjax.config.sections import (
  LOSS_MODES,
  TAPS,
  Base,
  Data,
  Heads,
  Loss,
  Mesh,
  Model,
  Optim,
  Tap,
  Train,
)
from mtpjax.config.values import (
  is_texts,
  kind_name,
  nearest,
  parse_value,
  shown,
  written,
)

__all__ = [
  "TAPS",
  "Tap",
  "Base",
  "BuiltIn",
  "Config",
  "Data",
  "Decode",
  "Heads",
  "LOSS_MODES",
  "Loss",
  "Mesh",
  "NUMBERS",
  "Sampling",
  "Model",
  "Optim",
  "Train",
  "built_in_experiments",
  "config_from_dict",
  "differences",
  "experiment_file",
  "fields",
  "is_texts",
  "kind_name",
  "load_config",
  "load_experiment",
  "nearest",
  "override",
  "parse_value",
  "shown",
  "read_json",
  "write_json",
  "written",
]
