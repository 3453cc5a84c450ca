"""A complete experiment: all sections, typed overrides, identity."""

import dataclasses
import json
import pathlib
import typing
from collections.abc import Iterator
from typing import Any

from mtpjax import staging
from mtpjax.config.checks import checked_value, require
from mtpjax.config.decode import Decode
from mtpjax.config.sections import (
  Base,
  Data,
  Heads,
  Loss,
  Mesh,
  Model,
  Optim,
  Train,
)
from mtpjax.config.values import (
  kind_name,
  nearest,
  parse_value,
  shown,
)
from mtpjax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Config:
  """A complete experiment."""

  model: Model = Model()
  heads: Heads = Heads()
  base: Base = Base()
  loss: Loss = Loss()
  data: Data = Data()
  optim: Optim = Optim()
  mesh: Mesh = Mesh()
  train: Train = Train()
  decode: Decode = Decode()

  def __post_init__(self):
    for section in dataclasses.fields(self):
      value, kind = getattr(self, section.name), section.type
      if not isinstance(value, typing.cast(Any, kind)):
        raise UserError(
          f"{section.name}: {shown(value)} is not a mtpjax.config."
          f"{typing.cast(Any, kind).__name__}"
        )
    weights, offsets = self.loss.weights, self.heads.offsets
    require(
      not weights or len(weights) == len(offsets), "loss.weights", weights,
      f"needs one weight for each of heads.offsets = {offsets}",
    )  # fmt: skip
    require(
      self.data.row_length > offsets[-1], "data.row_length",
      self.data.row_length,
      f"must be longer than the largest of heads.offsets = {offsets}",
    )  # fmt: skip
    if self.base.path:
      require(
        not self.heads.matched, "heads.matched", True,
        "would take layers from base.path = "
        f"{self.base.path!r}; give --heads.matched false",
      )  # fmt: skip
      require(
        self.heads.n_extra > 0, "heads.offsets", offsets,
        "leaves nothing to train on a base; give 1,2 or more",
      )  # fmt: skip
      require(
        not self.base.states or not self.heads.tapped.is_inside, "base.states",
        self.base.states,
        "keeps states after the last layer; give --heads.tap normed or last",
      )  # fmt: skip
    if self.heads.n_extra and self.heads.tapped.is_inside:
      require(
        self.model.n_layers >= 2, "model.n_layers", self.model.n_layers,
        "leaves no layer before the last; take 2 or more, or --heads.tap last",
      )  # fmt: skip

  def to_dict(self) -> dict[str, Any]:
    """The configuration as plain JSON values."""
    return json.loads(json.dumps(dataclasses.asdict(self)))

  def save(self, path: pathlib.Path) -> None:
    """Writes the configuration to `path` as JSON, whole or not at all."""
    write_json(path, self.to_dict())


def write_json(path: pathlib.Path, value: Any) -> None:
  """Writes a JSON file, whole or not at all."""
  with staging.whole_file(path) as part:
    part.write_text(json.dumps(value, indent=2) + "\n")


def read_json(path: pathlib.Path) -> Any:
  """Reads a JSON file; a byte-order mark is none of it.

  Args:
    path: the file.

  Returns:
    The value.

  Raises:
    OSError: it cannot be read.
    ValueError: it is not JSON, or nested too deeply to be read.
  """
  try:
    return json.loads(path.read_bytes())
  except RecursionError as error:
    raise ValueError("nested too deeply") from error


def fields(config: Any = Config) -> Iterator[tuple[str, dataclasses.Field]]:
  """Yields ("section.name", field) for every field of a configuration."""
  for section in dataclasses.fields(config):
    for field in dataclasses.fields(typing.cast(Any, section.type)):
      yield f"{section.name}.{field.name}", field


def override(config: Config, changes: dict[str, Any]) -> Config:
  """Returns `config` with fields replaced.

  Args:
    config: the configuration to start from.
    changes: values by path; "optim.peak_lr" and "optim.peak-lr" are the same.
      A string is read as on the command line.

  Returns:
    The new configuration, checked.

  Raises:
    UserError: a path that does not exist, or a value of the wrong type.
  """
  known = dict(fields())
  by_section: dict[str, dict[str, Any]] = {}
  for path, value in changes.items():
    path = path.replace("-", "_")
    if path not in known:
      raise UserError(
        f"{path}: no such configuration field{nearest(path, list(known))}"
      )
    kind = known[path].type
    if isinstance(value, str):
      try:
        value = parse_value(value, kind)
      except ValueError as error:
        raise UserError(
          f"{path}: {shown(value)} is not of the form {kind_name(kind)}"
        ) from error
    value = checked_value(path, value, kind)
    section, name = path.split(".")
    by_section.setdefault(section, {})[name] = value
  sections = {
    name: dataclasses.replace(getattr(config, name), **values)
    for name, values in by_section.items()
  }
  return dataclasses.replace(config, **sections)


def config_from_dict(values: dict[str, Any]) -> Config:
  """Returns the configuration of `Config.to_dict`; see `load_config`."""
  if not isinstance(values, dict) or not all(
    isinstance(entries, dict) for entries in values.values()
  ):
    raise UserError("configuration: must be an object of sections of fields")
  return override(
    Config(),
    {
      f"{section}.{name}": value
      for section, entries in values.items()
      for name, value in entries.items()
    },
  )


def differences(old: Config, new: Config) -> list[tuple[str, Any, Any]]:
  """Lists the identity fields that differ, as (path, old, new)."""
  rows = []
  for path, field in fields():
    section, name = path.split(".")
    before = getattr(getattr(old, section), name)
    after = getattr(getattr(new, section), name)
    if before != after and not field.metadata["may_change"]:
      rows.append((path, before, after))
  return rows
