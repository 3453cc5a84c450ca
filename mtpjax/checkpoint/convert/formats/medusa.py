"""Medusa heads (Cai et al. 2024) in the two layouts they are published in.

With L residual layers a head H is

  {H}.{l}.linear.weight, {H}.{l}.linear.bias   for l below L
  {H}.{L}.weight                               its own unembedding

in the first layout, and without the last line (the unembedding is the model's)
in that of version 2. Heads that came with their model in one checkpoint have
`medusa_head.` before the names. Head H predicts offset H + 2.

Axes: D width, V vocabulary, M heads.
"""

import functools
import pathlib
import re
from typing import Any

from mtpjax import config as config_lib
from mtpjax.checkpoint.convert.assemble import assemble
from mtpjax.checkpoint.convert.containers.safetensors import (
  Safetensors,
  write_file,
)
from mtpjax.checkpoint.convert.containers.tensors import Tensors
from mtpjax.checkpoint.convert.containers.torch_archive import TorchArchive
from mtpjax.checkpoint.convert.containers.wrappers import unwrapped
from mtpjax.checkpoint.convert.disassemble import disassemble
from mtpjax.checkpoint.convert.families import FAMILIES
from mtpjax.checkpoint.convert.format import Format, Source, Target, Written
from mtpjax.checkpoint.convert.layout import Leaf
from mtpjax.checkpoint.convert.unknown import check_unknown
from mtpjax.config.published import read_object
from mtpjax.errors import UserError
from mtpjax.heads import MultiTokenModel

_SAFETENSORS, _PICKLE = "medusa_lm_head.safetensors", "medusa_lm_head.pt"
_WHOLE = ("model.safetensors", "model.safetensors.index.json")
_PREFIX = "medusa_head."
_NAME = re.compile(r"(\d+)\.(\d+)\.(linear\.weight|linear\.bias|weight)")


def open(path: pathlib.Path) -> Source:
  """Opens Medusa heads.

  Args:
    path: medusa_lm_head.safetensors or .pt, a folder with one of them, or a
      folder with a whole model whose heads are named `medusa_head.`.

  Returns:
    The heads, as many as there are in the file; without a model.

  Raises:
    UserError: no such files, heads left out in the numbering, or tensors that
      are none of a head.
  """
  tensors = unwrapped(_open_tensors(path))
  names = list(tensors.names())
  prefix = _PREFIX if any(name.startswith(_PREFIX) for name in names) else ""
  parts: dict[tuple[int, int, str], str] = {}
  for name in names:
    found = _NAME.fullmatch(name.removeprefix(prefix))
    if found and name.startswith(prefix):
      parts[int(found[1]), int(found[2]), found[3]] = name
    elif name.startswith(prefix):
      raise UserError(
        f"{tensors.source}: the tensor {name} is none of a Medusa head, which "
        f"are named {prefix}0.0.linear.weight and so on; give another file"
      )
  if not parts:
    raise UserError(f"{tensors.source}: holds no tensors; give another file")
  indices = sorted({head for head, _, _ in parts})
  absent = sorted(set(range(indices[-1] + 1)) - set(indices))
  if absent:
    raise UserError(
      f"{tensors.source}: head {indices[-1]} is there, but not "
      f"{', '.join(map(str, absent))}; copy the whole file"
    )
  n_layers = 1 + max(
    (layer for _, layer, what in parts if what != "weight"), default=-1
  )
  if not n_layers:
    raise UserError(
      f"{tensors.source}: the heads have no residual layer "
      f"({prefix}0.0.linear.weight); only Medusa's own are read"
    )
  is_copied = any(what == "weight" for _, _, what in parts)
  heads = config_lib.Heads(
    kind="medusa",
    tap="normed",
    matched=False,
    offsets=tuple(range(1, len(indices) + 2)),
    n_layers=n_layers,
    unembedding="copied" if is_copied else "shared",
  )
  config = _read_config(path)
  return Source(
    heads,
    functools.partial(_load, tensors, heads, prefix),
    origin={
      "format": "medusa",
      "path": str(path.absolute()),
      "base_name": str(config.get("base_model_name_or_path") or ""),
    },
    notes=_check_config(config, tensors.source)
    + tuple(
      f"{tensors.source}: has {there} {called}, its config.json says {said!r}"
      for key, called, there in (
        ("medusa_num_heads", "heads", len(indices)),
        ("medusa_num_layers", "residual layers a head", n_layers),
      )
      if (said := config.get(key, there)) != there
    ),
  )


def _load(
  tensors: Tensors,
  heads: config_lib.Heads,
  prefix: str,
  model: MultiTokenModel,
  **kwargs: Any,
) -> dict[str, Any]:
  params = assemble(
    model.abstract()["heads"], _leaves(heads, prefix), tensors, model.mesh,
    lambda name: not name.startswith(prefix), **kwargs,
  )  # fmt: skip
  return {"heads": params}


def write(folder: pathlib.Path, target: Target) -> Written:
  """Writes heads as medusa_lm_head.safetensors and config.json.

  Args:
    folder: where to; made if it is not there.
    target: its heads are written, not its model.

  Raises:
    UserError: heads that this layout cannot hold, or heads are there already.
  """
  heads = target.model.heads
  _check(heads, "")
  file = folder / _SAFETENSORS
  if file.exists():
    raise UserError(f"{file}: is there already; give another folder")
  tensors = disassemble(_leaves(heads, ""), target.params["heads"])
  folder.mkdir(parents=True, exist_ok=True)
  write_file(file, tensors, target.dtype)
  config = {
    "medusa_num_heads": heads.n_extra,
    "medusa_num_layers": heads.n_layers,
    "base_model_name_or_path": target.name,
    "version": "2" if heads.unembedding == "shared" else "1",
  }
  config_lib.write_json(folder / "config.json", config)
  return Written(sum(tensor.size() for tensor in tensors), "Medusa heads")


def _check(heads: config_lib.Heads, where: str) -> None:
  """Raises UserError for heads that this layout cannot hold."""
  for name, value, only in (
    ("kind", heads.kind, "medusa"),
    ("tap", heads.tap, "normed"),
    ("offsets", heads.offsets, tuple(range(1, heads.n_extra + 2))),
  ):
    if value != only:
      raise UserError(
        f"heads.{name}: {value!r} cannot be written as Medusa heads, only "
        f"{only!r}; train such heads for it"
      )


FORMAT = Format(
  help="Medusa heads, on a model converted before",
  metavar="HEADS",
  open=open,
  is_on_base=True,
)


def _leaves(heads: config_lib.Heads, prefix: str) -> list[Leaf]:
  found = []
  for l in range(heads.n_layers):
    suffix = f"_{l + 1}" if l else ""
    stem = f"{prefix}{{i}}.{l}.linear"
    found += [
      Leaf(f"map{suffix}/kernel", f"{stem}.weight", n_in=1),
      Leaf(f"bias{suffix}", f"{stem}.bias"),
    ]
  if heads.unembedding == "copied":
    name = f"{prefix}{{i}}.{heads.n_layers}.weight"
    found.append(Leaf("unembedding", name, n_in=1))
  return found


def _open_tensors(path: pathlib.Path) -> Tensors:
  if path.is_dir():
    for name in (_SAFETENSORS, _PICKLE):
      if (path / name).is_file():
        return _open_tensors(path / name)
    if any((path / name).is_file() for name in _WHOLE):
      tensors = unwrapped(Safetensors(path))
      if any(name.startswith(_PREFIX) for name in tensors.names()):
        return tensors
    raise UserError(
      f"{path}: has neither {_SAFETENSORS} nor {_PICKLE}, nor a model with "
      f"tensors {_PREFIX}0.0.linear.weight and so on; give a folder that has"
    )
  if not path.is_file():
    raise UserError(
      f"{path}: no such file or folder; give one with {_SAFETENSORS}"
    )
  is_safetensors = path.suffix == ".safetensors"
  return Safetensors(path) if is_safetensors else TorchArchive(path)


def _check_config(config: dict[str, Any], source: str) -> tuple[str, ...]:
  """Refuses heads of another wiring; returns what else was not read.

  A whole model's config.json describes the model, which is not read here.
  """
  if config.get("architectures"):
    return ()
  for name, allowed in (
    ("hidden_act", ("silu", "swish")),
    ("version", ("1", "2", 1, 2, "")),
    ("model_type", ("medusa", *(f.model_type for f in FAMILIES.values()), "")),
  ):
    if config.get(name, allowed[0]) not in (*allowed, None):
      raise UserError(
        f"{source}: config.json beside it has {name} "
        f"{config_lib.shown(config[name])}; only Medusa's own heads are read"
      )
  known = ("hidden_act", "version", "medusa_num_heads", "medusa_num_layers")
  return check_unknown(config, known, f"{source}: config.json beside it")


def _read_config(path: pathlib.Path) -> dict[str, Any]:
  """Reads the config.json of the heads; {} where there is none."""
  file = (path if path.is_dir() else path.parent) / "config.json"
  return read_object(file) if file.is_file() else {}
