"""The work directory of a run: what lies where, and whose run it is.

runs/first/
  config.json      the experiment, vocabulary size included
  tokenizer.json   a copy, unless the tokenizer is "bytes"
  data.json        fingerprint of the rows trained on
  metrics.jsonl    one line per window of steps and per evaluation
  checkpoints/     see `store`
"""

import json
import pathlib
from typing import Any

from mtpjax import config as config_lib
from mtpjax.errors import UserError


class WorkDir:
  """Paths of a work directory, and its identity."""

  def __init__(self, path: str | pathlib.Path):
    """Names the directory; nothing is read or written."""
    self.path = pathlib.Path(path)
    self.config = self.path / "config.json"
    self.tokenizer = self.path / "tokenizer.json"
    self.data = self.path / "data.json"
    self.metrics = self.path / "metrics.jsonl"
    self.checkpoints = self.path / "checkpoints"

  def load_config(self) -> config_lib.Config:
    """Reads the configuration; UserError if this is no work directory."""
    if not self.path.is_dir():
      raise UserError(
        f"work directory {self.path}: not there; `mtpjax train EXPERIMENT "
        f"--workdir {self.path}` makes it"
      )
    return config_lib.load_config(self.config)

  def tokenizer_spec(self, config: config_lib.Config) -> str:
    """Returns what `data.load_tokenizer` should load for this run."""
    if config.data.tokenizer == "bytes":
      return "bytes"
    return str(self.tokenizer)

  def claim(
    self, config: config_lib.Config, fingerprint: dict[str, Any]
  ) -> None:
    """Makes the directory this run's, or finds that it already is.

    Args:
      config: the experiment, its vocabulary size known.
      fingerprint: that of the prepared rows; `id` is compared.

    Raises:
      UserError: the directory holds another run; names every difference.
    """
    if self.config.is_file():
      rows = config_lib.differences(config_lib.load_config(self.config), config)
      if self.data.is_file():
        there = json.loads(self.data.read_text())["id"]
        if there != fingerprint["id"]:
          rows.append(("data fingerprint", there[:12], fingerprint["id"][:12]))
      if rows:
        listed = "; ".join(
          f"{name} is {there!r} there, {asked!r} here"
          for name, there, asked in rows
        )
        raise UserError(
          f"work directory {self.path} holds another run: {listed}. Give "
          "another --workdir, or the values that are there"
        )
    self.path.mkdir(parents=True, exist_ok=True)
    self.data.write_text(json.dumps(fingerprint, indent=2) + "\n")
    config.save(self.config)
