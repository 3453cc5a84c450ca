"""`mtpjax convert`: a checkpoint of another format becomes a work directory."""

import dataclasses
import pathlib
import time
from typing import Any

import rich.console

from mtpjax import config as config_lib
from mtpjax import parallel
from mtpjax.checkpoint import Base, Store, WorkDir
from mtpjax.checkpoint.convert import FORMATS, Source
from mtpjax.data import load_tokenizer
from mtpjax.data.companions import (
  document_fields,
  published_files,
  read_files,
)
from mtpjax.heads import MultiTokenModel, count_params
from mtpjax.progress import Progress, print_line
from mtpjax.staging import new_folder


def run(
  kind: str,
  source: str | pathlib.Path,
  workdir: str | pathlib.Path,
  console: rich.console.Console,
  overrides: dict[str, Any],
  base_workdir: str | pathlib.Path | None = None,
) -> dict[str, Any]:
  """Converts a checkpoint; see `checkpoint.workdir` for what it becomes.

  The work directory appears complete or not at all.

  Args:
    kind: one of `FORMATS`.
    source: the file or folder.
    workdir: must not exist yet, or be empty.
    console: gets a line of summary, and one for each oddity of the source.
    overrides: of the sections `mesh` and of `model.dtype`,
      `model.param_dtype`, `model.remat` and `model.attention`.
    base_workdir: for heads alone, which refer to it: of the model they were
      trained on, from `mtpjax convert`.

  Returns:
    {"workdir", "params", "architecture", "dtype", "secs"}, or of heads alone
    {"workdir", "params", "offsets", "base", "secs"}.

  Raises:
    UserError: the source cannot be read or is of a model that mtpjax does not
      have, heads do not fit their base, or the work directory exists.
  """
  began = time.perf_counter()
  open_source = FORMATS[kind].open
  assert open_source is not None
  path = pathlib.Path(source)
  with new_folder(workdir, "config.json") as part:
    if base_workdir is None:
      with Progress(console, f"opening {source}"):
        opened = open_source(path)
      figures, line = _write_model(
        part, kind, path, opened, str(workdir), console, overrides
      )
    else:
      base = Base.open(base_workdir, named="BASE_WORKDIR")
      opened = open_source(path)
      figures, line = _write_heads(
        part, kind, path, opened, str(workdir), console, base, str(base_workdir)
      )
  figures = {"workdir": str(workdir)} | figures
  figures["secs"] = time.perf_counter() - began
  for note in opened.notes:
    print_line(console, f"WARNING: {note}")
  print_line(
    console, f"{workdir}: {line}, converted in {figures['secs']:.1f} s"
  )
  return figures


def _write_model(
  part: pathlib.Path,
  kind: str,
  source: pathlib.Path,
  opened: Source,
  workdir: str,
  console: rich.console.Console,
  overrides: dict[str, Any],
) -> tuple[dict[str, Any], str]:
  """Writes a whole model; returns figures of it and a clause that says them."""
  assert opened.model is not None
  files = published_files(opened.tokenizer)
  folder = source if source.is_dir() else source.parent
  fields = {"tokenizer": workdir} | document_fields(
    files, folder, opened.model.vocab_size
  )
  data = config_lib.Data(**fields)
  config = config_lib.override(
    config_lib.Config(
      model=opened.model,
      heads=opened.heads,
      data=data,
      decode=config_lib.Decode(mode="next"),
    ),
    overrides,
  )
  model = MultiTokenModel(
    config.model, config.heads, parallel.make_mesh(config.mesh)
  )
  if data.tokenizer == workdir:
    for name, raw in files.items():
      (part / name).write_bytes(raw)
    # Before the weights: what could not be loaded later fails at once.
    load_tokenizer(str(part), data.bos_token, data.eos_tokens)
  n_params = sum(count_params(model).values())
  with Progress(console, f"reading {source}, values", n_params) as progress:
    params = opened.load(model, on_read=progress.update)
  _write(part, config, params, opened.origin, {}, console)
  figures = {
    "params": n_params,
    "architecture": opened.origin.get("architecture", kind),
    "dtype": config.model.param_dtype,
  }
  return figures, (
    f"{figures['architecture']}, {n_params:,} parameters in {figures['dtype']}"
  )


def _write_heads(
  part: pathlib.Path,
  kind: str,
  source: pathlib.Path,
  opened: Source,
  workdir: str,
  console: rich.console.Console,
  base: Base,
  base_path: str,
) -> tuple[dict[str, Any], str]:
  """Writes heads that refer to their base; see `_write_model`."""
  there = base.config
  # A base trained with cuDNN's attention takes heads where there is no GPU.
  portable = dataclasses.replace(there.model, attention="auto")
  mesh = parallel.single_device_mesh()
  trunk = MultiTokenModel(portable, there.heads, mesh)
  files = read_files(base.place.path)
  config = config_lib.Config(
    model=dataclasses.replace(portable, n_layers=trunk.trunk_layers),
    heads=opened.heads,
    base=config_lib.Base(path=base_path),
    data=dataclasses.replace(
      there.data, tokenizer=workdir if files else there.data.tokenizer
    ),
  )
  model = MultiTokenModel(config.model, config.heads, mesh)
  n_params = count_params(model)["heads"]
  with Progress(console, f"reading {source}, values", n_params) as progress:
    params = opened.load(model, on_read=progress.update)
  _write(part, config, params, opened.origin, {"base": base.reference}, console)
  for name, raw in files.items():
    (part / name).write_bytes(raw)
  figures = {
    "params": n_params,
    "offsets": config.heads.offsets,
    "base": base_path,
  }
  return figures, (
    f"{config.heads.n_extra} {kind.capitalize()} heads of {n_params:,} "
    f"parameters on {base_path}"
  )


def _write(
  folder: pathlib.Path,
  config: config_lib.Config,
  params: Any,
  origin: dict[str, Any],
  base: dict[str, Any],
  console: rich.console.Console,
) -> None:
  """Writes the configuration, the origin and a checkpoint of step 0."""
  place = WorkDir(folder)
  config.save(place.config)
  config_lib.write_json(place.origin, origin)
  metadata = {
    "config": config.to_dict(), "data": "", "tokenizer": "", "step": 0
  }  # fmt: skip
  with (
    Progress(console, "writing the checkpoint"),
    Store(place.checkpoints) as store,
  ):
    store.save(0, {"params": params}, metadata | base, wait=True)
