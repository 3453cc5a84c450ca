"""`mtpjax convert`: a checkpoint of another format becomes a work directory."""

import dataclasses
import pathlib
import time
from collections.abc import Callable
from typing import Any

import rich.console

from mtpjax import config as config_lib
from mtpjax import parallel
from mtpjax.checkpoint import Base, Store, WorkDir, convert
from mtpjax.checkpoint.convert.companions import copy_files
from mtpjax.data import load_tokenizer
from mtpjax.heads import MultiTokenModel, count_params
from mtpjax.progress import Progress, print_line
from mtpjax.staging import new_folder

_OPENERS: dict[str, Callable[[str | pathlib.Path], convert.Source]] = {
  "hf": convert.open_hf,
  "gguf": convert.open_gguf,
  "meta": convert.open_meta,
}


def run(
  kind: str,
  source: str | pathlib.Path,
  workdir: str | pathlib.Path,
  console: rich.console.Console,
  overrides: dict[str, Any],
) -> dict[str, Any]:
  """Converts a checkpoint; see `checkpoint.workdir` for what it becomes.

  The work directory appears complete or not at all.

  Args:
    kind: "hf", "gguf" or "meta".
    source: the file or folder.
    workdir: must not exist yet, or be empty.
    console: gets a line of summary.
    overrides: of the sections `mesh` and of `model.dtype`,
      `model.param_dtype`, `model.remat` and `model.attention`.

  Returns:
    {"workdir", "params", "architecture", "dtype", "secs"}.

  Raises:
    UserError: the source cannot be read or is of a model that mtpjax does not
      have, or the work directory exists.
  """
  began = time.perf_counter()
  with new_folder(workdir, "config.json") as part:
    with Progress(console, f"opening {source}"):
      opened = _OPENERS[kind](source)
    data = config_lib.Data(tokenizer=str(workdir), **opened.data)
    config = config_lib.override(
      config_lib.Config(
        model=opened.model,
        heads=opened.heads,
        data=data,
        decode=config_lib.Decode(mode="next"),
      ),
      overrides,
    )
    mesh = parallel.make_mesh(config.mesh)
    model = MultiTokenModel(config.model, config.heads, mesh)
    for name, text in opened.files.items():
      (part / name).write_bytes(text.encode("utf-8"))
    # Before the weights: what could not be loaded later fails at once.
    load_tokenizer(str(part), data.bos_token, data.eos_tokens)
    n_params = sum(count_params(model).values())
    with Progress(console, f"reading {source}, values", n_params) as progress:
      params = opened.load(model, on_read=progress.update)
    _write(part, config, params, opened.origin, {}, console)
  for note in opened.notes:
    print_line(console, f"WARNING: {note}")
  figures = {
    "workdir": str(workdir),
    "params": n_params,
    "architecture": opened.origin.get("architecture", kind),
    "dtype": config.model.param_dtype,
    "secs": time.perf_counter() - began,
  }
  print_line(
    console,
    f"{workdir}: {figures['architecture']}, {figures['params']:,} parameters "
    f"in {figures['dtype']}, converted in {figures['secs']:.1f} s",
  )
  return figures


def run_medusa(
  heads: str | pathlib.Path,
  base_workdir: str | pathlib.Path,
  workdir: str | pathlib.Path,
  console: rich.console.Console,
) -> dict[str, Any]:
  """Puts published Medusa heads on a converted base, which is referred to.

  Args:
    heads: see `checkpoint.convert.read_medusa`.
    base_workdir: of the model they were trained on, from `mtpjax convert`.
    workdir: must not exist yet, or be empty.
    console: gets a line of summary, and one for each oddity of the heads.

  Returns:
    {"workdir", "params", "offsets", "base", "secs"}.

  Raises:
    UserError: the heads cannot be read or do not fit the base, the base is
      not there, or the work directory exists.
  """
  began = time.perf_counter()
  with new_folder(workdir, "config.json") as part:
    base = Base.open(base_workdir, named="BASE_WORKDIR")
    medusa = convert.read_medusa(heads)
    mesh = parallel.single_device_mesh()
    there = base.config
    # A base trained with cuDNN's attention takes heads where there is no GPU.
    portable = dataclasses.replace(there.model, attention="xla")
    trunk = MultiTokenModel(portable, there.heads, mesh)
    has_tokenizer = there.data.tokenizer != "bytes"
    config = config_lib.Config(
      model=dataclasses.replace(portable, n_layers=trunk.trunk_layers),
      heads=medusa.heads,
      base=config_lib.Base(path=str(base_workdir)),
      data=dataclasses.replace(
        there.data, tokenizer=str(workdir) if has_tokenizer else "bytes"
      ),
    )
    model = MultiTokenModel(config.model, config.heads, mesh)
    n_params = count_params(model)["heads"]
    with Progress(console, f"reading {heads}, values", n_params) as progress:
      params = {"heads": medusa.load(model, on_read=progress.update)}
    origin = {
      "format": "medusa",
      "path": str(pathlib.Path(heads).absolute()),
      "base_name": medusa.base_name,
    }
    _write(part, config, params, origin, {"base": base.reference}, console)
    copy_files(base.place.path, part)
  figures = {
    "workdir": str(workdir),
    "params": n_params,
    "offsets": config.heads.offsets,
    "base": str(base_workdir),
    "secs": time.perf_counter() - began,
  }
  for note in medusa.notes:
    print_line(console, f"WARNING: {note}")
  print_line(
    console,
    f"{workdir}: {config.heads.n_extra} Medusa heads of {figures['params']:,} "
    f"parameters on {base_workdir}, converted in {figures['secs']:.1f} s",
  )
  return figures


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
