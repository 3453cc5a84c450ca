"""The work directory of a run: what lies where, and whose run it is.

runs/first/
  config.json      the experiment, vocabulary size included
  tokenizer.json   a copy, unless the tokenizer is "bytes"
  data.json        fingerprint of the rows trained on
  origin.json      instead of data.json: what the model was imported from
  metrics.jsonl    one line per window of steps and per evaluation
  checkpoints/     see `store`
  calibration.json what drafts are worth here, and calibration.png
  lock             while something writes here, see `lock`
"""

import contextlib
import json
import os
import pathlib
import re
import shutil
from collections.abc import Callable
from typing import Any

import jax

from mtpjax import config as config_lib
from mtpjax.checkpoint.lock import lock
from mtpjax.errors import UserError, quoted

# What a start leaves that failed before its first checkpoint, beside
# config.json and data.json, and what another run would take for its own.
_OF_A_START = (
  "tokenizer.json",
  "tokenizer_config.json",
  "generation_config.json",
  "special_tokens_map.json",
  "chat_template.jinja",
  "metrics.jsonl",
  "calibration.json",
  "calibration.png",
)
_UNFINISHED = re.compile(r"\d+\.orbax-checkpoint-tmp")


class WorkDir:
  """Paths of a work directory, and its identity."""

  def __init__(self, path: str | pathlib.Path):
    """Names the directory; nothing is read or written."""
    self.path = pathlib.Path(path)
    self.config = self.path / "config.json"
    self.tokenizer = self.path / "tokenizer.json"
    self.data = self.path / "data.json"
    self.origin = self.path / "origin.json"
    self.metrics = self.path / "metrics.jsonl"
    self.checkpoints = self.path / "checkpoints"
    self.calibration = self.path / "calibration.json"

  def hold(
    self, say: Callable[[str], None]
  ) -> contextlib.AbstractContextManager[None]:
    """Returns a context in which nothing else writes here.

    Args:
      say: gets a line where the directory cannot be locked.

    Raises:
      UserError: on entry: another process writes here.
    """
    return lock(self.path, "work directory", "take another directory", say)

  def make(self) -> None:
    """Makes the directory if it is not there; UserError if it cannot be."""
    try:
      self.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
      raise UserError(
        f"work directory {self.path}: cannot be made ({error.strerror}); give "
        "another --workdir"
      ) from error

  def load_config(self) -> config_lib.Config:
    """Reads the configuration; UserError if this is no work directory."""
    if self.path.is_file():
      raise UserError(
        f"work directory {self.path}: is a file; give a folder that `mtpjax "
        "train` or `mtpjax convert` made"
      )
    if not self.path.is_dir():
      raise UserError(
        f"work directory {self.path}: not there; `mtpjax train EXPERIMENT "
        f"--workdir {quoted(self.path)}` makes it"
      )
    return config_lib.load_config(self.config)

  def claim(
    self, config: config_lib.Config, fingerprint: dict[str, Any]
  ) -> None:
    """Makes the directory this run's, or finds that it already is.

    One whose run has no checkpoint yet is replaced: its start failed.

    Args:
      config: the experiment, its vocabulary size known.
      fingerprint: that of the prepared rows; `id` is compared.

    Raises:
      UserError: the directory holds another run; names every difference. Or
        it cannot be written to.
    """
    if self.config.is_file():
      # Also distinguishes our config.json from that of a published model.
      there = config_lib.load_config(self.config)
      if self._is_a_failed_start(there):
        self._clear()
      else:
        data_id = self.data_id() if self.data.is_file() else fingerprint["id"]
        self._require_same(there, data_id, config, fingerprint["id"])
    try:
      self.path.mkdir(parents=True, exist_ok=True)
      config_lib.write_json(self.data, fingerprint)
      config.save(self.config)
    except OSError as error:
      raise UserError(
        f"work directory {self.path}: cannot be written to ("
        f"{error.strerror}); make room, or give another --workdir"
      ) from error

  def _is_a_failed_start(self, there: config_lib.Config) -> bool:
    """Whether a run began here and saved nothing, not even a damaged step."""
    if self.origin.is_file() or not self.data.is_file():
      return False
    if self.checkpoints.is_dir():
      names = os.listdir(self.checkpoints)
      return all(_UNFINISHED.fullmatch(name) for name in names)
    if os.path.lexists(self.checkpoints):
      return False  # a link to a disk that is not mounted
    # A run that got further has saved; someone has moved its checkpoints.
    first_save = min(there.train.save_every, there.train.steps)
    return self._last_logged_step() < first_save

  def _last_logged_step(self) -> int:
    """Returns the last step in the metrics; 0 if there is none."""
    last = 0
    with contextlib.suppress(OSError):
      for line in self.metrics.read_bytes().splitlines():
        # A killed process may leave the last line unfinished.
        with contextlib.suppress(ValueError, KeyError, TypeError):
          last = max(last, int(json.loads(line)["step"]))
    return last

  def _clear(self) -> None:
    """Removes what a failed start left; nothing else."""
    if jax.process_index() > 0:
      return
    for name in _OF_A_START:
      (self.path / name).unlink(missing_ok=True)
    for folder in (self.path / "tensorboard", self.checkpoints):
      shutil.rmtree(folder, ignore_errors=True)

  def data_id(self) -> str:
    """Returns the id of the rows trained on; UserError if it is damaged.

    It is empty for an imported model, which has none.
    """
    if self.origin.is_file():
      return ""
    try:
      data_id = config_lib.read_json(self.data)["id"]
      if not isinstance(data_id, str):
        raise TypeError(f"id {data_id!r} is no text")
    except (OSError, ValueError, KeyError, TypeError) as error:
      raise UserError(
        f"{self.data}: missing or damaged; copy it from the data folder's "
        "fingerprint.json"
      ) from error
    return data_id

  def require_own_checkpoint(
    self, config: config_lib.Config, metadata: dict[str, Any]
  ) -> None:
    """Checks that a checkpoint found here is of this run.

    Args:
      config: the run's.
      metadata: the checkpoint's: `config` and `data`.

    Raises:
      UserError: it was saved by another run; names every difference.
    """
    there = config_lib.config_from_dict(metadata.get("config", {}))
    data_there = str(metadata.get("data"))
    self._require_same(there, data_there, config, self.data_id())

  def _require_same(
    self,
    there: config_lib.Config,
    data_there: str,
    config: config_lib.Config,
    data_id: str,
  ) -> None:
    rows = config_lib.differences(there, config)
    if data_there != data_id:
      rows.append(("data fingerprint", data_there[:12], data_id[:12]))
    if rows:
      listed = "; ".join(
        f"{name} is {old!r} there, {new!r} here" for name, old, new in rows
      )
      raise UserError(
        f"work directory {self.path} holds another run: {listed}. Give "
        "another --workdir, or the values that are there"
      )
