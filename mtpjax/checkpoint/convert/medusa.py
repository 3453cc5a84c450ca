"""Medusa heads (Cai et al. 2024) in the two layouts they are published in.

With L residual layers a head H is

  {H}.{l}.linear.weight, {H}.{l}.linear.bias   for l below L
  {H}.{L}.weight                               its own unembedding

in the first layout, and without the last line (the unembedding is the model's)
in that of version 2. Heads that came with their model in one checkpoint have
`medusa_head.` before the names. Head H predicts offset H + 2.

Axes: D width, V vocabulary, M heads.
"""

import dataclasses
import json
import pathlib
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mtpjax import config as config_lib
from mtpjax.checkpoint.convert import companions
from mtpjax.checkpoint.convert.assemble import assemble
from mtpjax.checkpoint.convert.families import FAMILIES
from mtpjax.checkpoint.convert.layout import Leaf
from mtpjax.checkpoint.convert.tensors import Safetensors, Tensors
from mtpjax.checkpoint.convert.torch_archive import TorchArchive
from mtpjax.checkpoint.convert.unknown import check_unknown
from mtpjax.checkpoint.convert.wrappers import unwrapped
from mtpjax.errors import UserError
from mtpjax.heads import MultiTokenModel

_SAFETENSORS, _PICKLE = "medusa_lm_head.safetensors", "medusa_lm_head.pt"
_WHOLE = ("model.safetensors", "model.safetensors.index.json")
_PREFIX = "medusa_head."
_NAME = re.compile(r"(\d+)\.(\d+)\.(linear\.weight|linear\.bias|weight)")


@dataclasses.dataclass(frozen=True)
class MedusaHeads:
  """Published heads, opened but not yet read.

  Attributes:
    heads: how many, how deep, and whether with unembeddings of their own.
    base_name: the model they were trained on, as their config.json has it.
    notes: what their config.json says that is not so; one line each.
  """

  heads: config_lib.Heads
  base_name: str
  notes: tuple[str, ...]
  _tensors: Tensors
  _prefix: str

  def load(self, model: MultiTokenModel, **kwargs: Any) -> Any:
    """Reads the parameters of the heads of a model, params["heads"].

    Args:
      model: with heads like these; its mesh and dtypes are used.
      **kwargs: `on_read`, see `assemble`.

    Returns:
      The tree of arrays, stacked [M, ...].

    Raises:
      UserError: a tensor is missing, not used, damaged, or of another width
        or vocabulary than the model.
    """
    return assemble(
      model.abstract()["heads"], _leaves(self.heads, self._prefix),
      self._tensors, model.mesh,
      lambda name: not name.startswith(self._prefix), **kwargs,
    )  # fmt: skip


def read_medusa(path: str | pathlib.Path) -> MedusaHeads:
  """Opens Medusa heads.

  Args:
    path: medusa_lm_head.safetensors or .pt, a folder with one of them, or a
      folder with a whole model whose heads are named `medusa_head.`.

  Returns:
    The heads, as many as there are in the file.

  Raises:
    UserError: no such files, heads left out in the numbering, or tensors that
      are none of a head.
  """
  path = pathlib.Path(path)
  tensors = unwrapped(_open(path))
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
  notes = _check_config(config, tensors.source)
  return MedusaHeads(
    heads,
    str(config.get("base_model_name_or_path") or ""),
    notes
    + tuple(
      f"{tensors.source}: has {there} {called}, its config.json says {said!r}"
      for key, called, there in (
        ("medusa_num_heads", "heads", len(indices)),
        ("medusa_num_layers", "residual layers a head", n_layers),
      )
      if (said := config.get(key, there)) != there
    ),
    tensors,
    prefix,
  )


def write_medusa(
  folder: str | pathlib.Path,
  heads: config_lib.Heads,
  params: Any,
  base_name: str,
  dtype: str,
) -> None:
  """Writes heads as medusa_lm_head.safetensors and config.json.

  Args:
    folder: where to; made if it is not there.
    heads: of kind medusa after the final norm, with no offset left out.
    params: params["heads"], stacked [M, ...].
    base_name: the model they belong to: a name or a path.
    dtype: float32, float16 or bfloat16.

  Raises:
    UserError: heads that this layout cannot hold, or heads are there already.
  """
  import safetensors.numpy

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
  folder = pathlib.Path(folder)
  if (folder / _SAFETENSORS).exists():
    raise UserError(
      f"{folder / _SAFETENSORS}: is there already; give another folder"
    )
  flat = {
    jax.tree_util.keystr(path, simple=True, separator="/"): leaf
    for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]
  }
  stored: dict[str, np.ndarray] = {}
  for leaf in _leaves(heads, ""):
    stacked = flat.pop(leaf.path)
    for i, name in enumerate(leaf.names(stacked.shape)):
      one = np.asarray(stacked[i]).astype(jnp.dtype(dtype))
      stored[name] = np.ascontiguousarray(one.T)
  assert not flat, flat.keys()
  folder.mkdir(parents=True, exist_ok=True)
  safetensors.numpy.save_file(
    stored, folder / _SAFETENSORS, metadata={"format": "pt"}
  )
  config = {
    "medusa_num_heads": heads.n_extra,
    "medusa_num_layers": heads.n_layers,
    "base_model_name_or_path": base_name,
    "version": "2" if heads.unembedding == "shared" else "1",
  }
  (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


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


def _open(path: pathlib.Path) -> Tensors:
  if path.is_dir():
    for name in (_SAFETENSORS, _PICKLE):
      if (path / name).is_file():
        return _open(path / name)
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
  return companions.read_json(file) if file.is_file() else {}
