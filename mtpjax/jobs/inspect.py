"""`mtpjax inspect`: what is in a work directory."""

import dataclasses
import datetime
import os
import pathlib
from collections.abc import Callable
from typing import Any

import rich.console
import rich.filesize

from mtpjax import parallel
from mtpjax.budget import Calibration
from mtpjax.checkpoint import Base, Store, WorkDir
from mtpjax.config import Config, read_json
from mtpjax.data import load_tokenizer, tokenizer_of_run
from mtpjax.errors import UserError
from mtpjax.heads import MultiTokenModel, count_params
from mtpjax.progress import print_line


def run(
  workdir: str | pathlib.Path, console: rich.console.Console
) -> dict[str, Any]:
  """Shows what is in a work directory; reads no weights.

  Args:
    workdir: of `mtpjax train` or `mtpjax convert`.
    console: gets a line per part.

  Returns:
    The same by part. A part that is damaged is {"error": why}, one that is not
    there None.

  Raises:
    UserError: it is no work directory, or its configuration is damaged.
  """
  place = WorkDir(workdir)
  config = place.load_config()
  parts: dict[str, Callable[[WorkDir, Config], dict[str, Any] | None]] = {
    "model": _model,
    "parameters": _parameters,
    "heads": _heads,
    "tokenizer": _tokenizer,
    "checkpoints": _checkpoints,
    "data": _data,
    "origin": _origin,
    "base": _base,
    "calibration": _calibration,
    "disk": _disk,
  }
  found: dict[str, Any] = {"workdir": str(place.path)}
  for name, read in parts.items():
    found[name] = _read(read, place, config)
  print_line(console, str(place.path))
  for name in parts:
    print_line(console, f"  {name:<12}{_line(found[name])}")
  return found


def _read(read: Any, place: WorkDir, config: Config) -> dict[str, Any] | None:
  """Returns a part; one that is damaged does not hide the others."""
  try:
    return read(place, config)
  except (UserError, OSError) as error:
    return {"error": " ".join(str(error).split())}
  except (
    ValueError, KeyError, TypeError, AttributeError, OverflowError
  ) as error:  # fmt: skip
    # Files that hold something else than they should.
    return {"error": f"damaged ({type(error).__name__}: {error})"}


def _line(values: dict[str, Any] | None) -> str:
  if values is None:
    return "none"
  if "error" in values:
    return f"ERROR: {values['error']}"
  return "; ".join(
    f"{name.replace('_', ' ')} {_shown(name, value)}"
    for name, value in values.items()
  )


def _shown(name: str, value: Any) -> str:
  if isinstance(value, bool):
    return "yes" if value else "no"
  if isinstance(value, dict):
    return ", ".join(f"{k} {_shown(k, v)}" for k, v in value.items()) or "none"
  if isinstance(value, list):
    return ", ".join(_shown(name, each) for each in value) or "none"
  if name.endswith("bytes"):
    return rich.filesize.decimal(value)
  if isinstance(value, int) and not name.endswith("ids"):
    return f"{value:,}"
  return "none" if value is None else str(value)


def _model(place: WorkDir, config: Config) -> dict[str, Any]:
  c = config.model
  return {
    "layers": c.n_layers,
    "width": c.d_model,
    "attention_heads": c.n_attention_heads,
    "kv_heads": c.n_kv_heads,
    "vocabulary": c.vocab_size,
    "dtype": c.dtype,
  }


def _multi_token(config: Config) -> MultiTokenModel:
  # As `load` does: what it was trained with may not run here.
  portable = dataclasses.replace(config.model, attention="auto")
  return MultiTokenModel(portable, config.heads, parallel.single_device_mesh())


def _parameters(place: WorkDir, config: Config) -> dict[str, Any]:
  counts = count_params(_multi_token(config))
  return {**counts, "total": sum(counts.values())}


def _heads(place: WorkDir, config: Config) -> dict[str, Any]:
  heads = config.heads
  return {
    "kind": heads.kind,
    "offsets": list(heads.offsets),
    "tap": heads.tap,
    "trunk_layers": _multi_token(config).trunk_layers,
  }


def _tokenizer(place: WorkDir, config: Config) -> dict[str, Any]:
  data = config.data
  spec = tokenizer_of_run(config.data.tokenizer, place.path)
  tokenizer = load_tokenizer(spec, data.bos_token, data.eos_tokens)
  return {
    "kind": spec if spec != str(place.path) else place.tokenizer.name,
    "vocabulary": tokenizer.vocab_size,
    "bos_id": tokenizer.bos_id,
    "eos_ids": list(tokenizer.eos_ids),
    "chat_template": tokenizer.chat_template is not None,
  }


def _checkpoints(place: WorkDir, config: Config) -> dict[str, Any]:
  steps: dict[str, Any] = {}
  with Store(place.checkpoints) as store:
    for step in store.steps():
      path = place.checkpoints / str(step)
      saved = datetime.datetime.fromtimestamp(path.stat().st_mtime)
      values = {
        "saved": saved.isoformat(" ", "minutes"),
        "bytes": _bytes(path),
      }
      try:
        store.read_metadata(step)
      except UserError:
        values["is_damaged"] = True
      steps[str(step)] = values
  return {"steps": steps}


def _data(place: WorkDir, config: Config) -> dict[str, Any] | None:
  if place.origin.is_file():
    return None
  there = pathlib.Path(config.data.path)
  return {
    "path": config.data.path,
    "is_there": there.is_dir(),
    "fingerprint": place.data_id()[:12],
    "sources": list(config.data.sources),
  }


def _origin(place: WorkDir, config: Config) -> dict[str, Any] | None:
  if not place.origin.is_file():
    return None
  return dict(read_json(place.origin))


def _base(place: WorkDir, config: Config) -> dict[str, Any] | None:
  if not config.base.path:
    return None
  values = {
    "path": config.base.path, "is_trained": config.base.is_trained
  }  # fmt: skip
  with Store(place.checkpoints) as store:
    metadata = store.read_metadata() if store.steps() else {}
  reference = metadata.get("base")
  if reference is None:
    return values
  values |= {"step": reference["step"], "digest": reference["digest"][:12]}
  try:
    base = Base.find(config.base.path, reference, place.path)
    return values | {"path": str(base.place.path), "is_the_same": True}
  except UserError as error:
    return values | {"is_the_same": f"no: {error}"}


def _calibration(place: WorkDir, config: Config) -> dict[str, Any] | None:
  if not place.calibration.is_file():
    return None
  found = Calibration.load(place.calibration)
  return {
    "step": found.step,
    "device": found.device,
    "entries": [
      f"batch {e.batch} at temperature {e.temperature:g}" for e in found.entries
    ],
  }


def _disk(place: WorkDir, config: Config) -> dict[str, Any]:
  return {
    "bytes": _bytes(place.path),
    "checkpoints_bytes": _bytes(place.checkpoints),
  }


def _bytes(path: pathlib.Path) -> int:
  total = 0
  for folder, _, names in os.walk(path):
    for name in names:
      # Files may go meanwhile: a training deletes old steps.
      try:
        total += os.lstat(os.path.join(folder, name)).st_size
      except OSError:
        continue
  return total
