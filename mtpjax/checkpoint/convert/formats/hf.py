"""Folders as Hugging Face publishes them: config.json and safetensors."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable
from typing import Any

from mtpjax import config as config_lib
from mtpjax.checkpoint.convert import families
from mtpjax.checkpoint.convert.assemble import assemble
from mtpjax.checkpoint.convert.containers.safetensors import (
  Safetensors,
  write_folder,
)
from mtpjax.checkpoint.convert.containers.tensors import Tensors, are_equal
from mtpjax.checkpoint.convert.containers.wrappers import unwrapped
from mtpjax.checkpoint.convert.disassemble import StoredTensor, disassemble
from mtpjax.checkpoint.convert.format import Format, Source, Target, Written
from mtpjax.checkpoint.convert.formats import deepseek, medusa
from mtpjax.checkpoint.convert.formats.hf_names import HF_NAMES
from mtpjax.checkpoint.convert.layout import below, lm_leaves
from mtpjax.config.published import Fields, read_object
from mtpjax.errors import UserError
from mtpjax.heads import HEADS, MultiTokenModel


def open(path: pathlib.Path) -> Source:
  """Opens a folder of config.json, safetensors and tokenizer.json.

  Args:
    path: the folder, as `save_pretrained`, a download or `write` leaves it.

  Returns:
    The source; with sequential heads if they are among the weights.

  Raises:
    UserError: a file is missing or damaged, or the architecture is not one of
      `families.FAMILIES`.
  """
  if not path.is_dir():
    what = "is a file" if path.exists() else "no such folder"
    raise UserError(
      f"{path}: {what}; give the folder with config.json and the weights"
    )
  file = path / "config.json"
  values = read_object(file)
  own = {k: v for k, v in values.items() if k not in deepseek.FIELDS}
  model = families.read_model(own, str(file))
  stored = Safetensors(path)
  tensors = unwrapped(stored)
  counts = {"num_hidden_layers": model.n_layers}
  fields = Fields(values, str(file))
  counts |= deepseek.counts(fields)
  for name, n in counts.items():  # before names are made of them all
    if n > len(tensors.names()):
      raise UserError(
        f"{file}: {name} {n:,} is more than the {len(tensors.names()):,} "
        "tensors there; copy both again"
      )
  heads = deepseek.read_heads(fields, model)
  _require_unembedding(path, model, tensors)
  return Source(
    model=model,
    heads=heads,
    load=functools.partial(_load, tensors),
    tokenizer=path,
    origin={
      "format": "hugging-face",
      "path": str(path.absolute()),
      "architecture": families.architecture(values, str(file)),
      "max_length": families.max_length(values, str(file)),
      "bytes": {file.name: file.stat().st_size for file in stored.files()},
    },
    notes=families.notes(own, str(file)),
  )


def write(folder: pathlib.Path, target: Target) -> Written:
  """Writes config.json and safetensors, of the family that fits the model.

  Args:
    folder: an empty one.
    target: its heads are written as their kind is published.

  Raises:
    UserError: no published architecture has the model's features.
  """
  model, lm = target.model, target.params["lm"]
  values = families.write_values(
    model.config, model.trunk_layers, target.dtype, target.max_length
  )
  tensors = disassemble(lm_leaves(model.config, HF_NAMES), lm)
  layout = None
  if "heads" in target.params:
    layout = _layout_of(model.heads)
    assert layout is not None, "`_check` goes before"
    values |= layout.fields(model.config, model.heads.n_extra)
    tensors += layout.tensors(model.config, lm, target.params["heads"])
  config_lib.write_json(folder / "config.json", values | dict(target.ids))
  n_values = sum(tensor.size() for tensor in tensors)
  write_folder(
    folder, tensors, target.dtype, target.max_shard_bytes,
    target.progress(n_values),
  )  # fmt: skip
  if layout is not None and layout.write_beside is not None:
    layout.write_beside(folder, target)
  return Written(
    n_values, values["architectures"][0], "" if layout is None else layout.note
  )


@dataclasses.dataclass(frozen=True)
class _Layout:
  """How heads are published with a model.

  Attributes:
    tap: that of such heads.
    note: says where they are.
    fields: (model, heads) -> fields of config.json that speak of them.
    tensors: (model, lm, heads) -> tensors among the model's.
    write_beside: writes what lies beside the model.
  """

  tap: str
  note: str
  fields: Callable[[config_lib.Model, int], dict[str, Any]] = (
    lambda model, n_heads: {}
  )  # fmt: skip
  tensors: Callable[[config_lib.Model, Any, Any], list[StoredTensor]] = (
    lambda model, lm, heads: []
  )
  write_beside: Callable[[pathlib.Path, Target], Any] | None = None


# By what a kind of heads says of itself.
_LAYOUTS = {
  "medusa": _Layout(
    "normed", "Medusa heads in medusa/",
    write_beside=lambda folder, target: medusa.write(folder / "medusa", target),
  ),
  "deepseek": _Layout(
    "last", "sequential heads as the last layers",
    deepseek.fields_of, deepseek.tensors,
  ),
}  # fmt: skip


def _layout_of(heads: config_lib.Heads) -> _Layout | None:
  """Returns how heads are published; None where they are not."""
  layout = _LAYOUTS.get(getattr(HEADS[heads.kind], "published", ""))
  return layout if layout and layout.tap == heads.tap else None


def _check(heads: config_lib.Heads, where: str) -> None:
  if _layout_of(heads) is None:
    raise UserError(
      f"{where}: has {heads.n_extra} extra heads of kind {heads.kind} with "
      f"tap {heads.tap}, which no published format holds; give --next-only to "
      "leave them out"
    )


FORMAT = Format(
  help="a Hugging Face folder: config.json, safetensors, tokenizer",
  open=open,
  export_help="a Hugging Face folder, of the family that has the model's "
  "features",
  check=_check,
  write=write,
)


def _load(
  tensors: Tensors, model: MultiTokenModel, **kwargs: Any
) -> dict[str, Any]:
  config, n_layers = model.config, model.trunk_layers
  leaves = below("lm", lm_leaves(config, HF_NAMES))
  copies: dict[str, str] = {}
  if config.tied_embeddings:
    copies[HF_NAMES["unembedding"]] = HF_NAMES["embedding"]
    _require_tied(tensors)
  if model.heads.n_extra:
    leaves += below("heads", deepseek.leaves(config, n_layers))
    of_heads = deepseek.copies(config, n_layers, model.heads)
    deepseek.require_copies(tensors, of_heads)
    copies |= of_heads

  def is_ignored(name: str) -> bool:
    # Old checkpoints keep the frequencies, which follow from the config.
    return name.endswith("rotary_emb.inv_freq") or name in copies

  return assemble(
    model.abstract(), leaves, tensors, model.mesh, is_ignored, **kwargs
  )


def _require_unembedding(
  path: pathlib.Path, model: config_lib.Model, tensors: Tensors
) -> None:
  name, names = HF_NAMES["unembedding"], tensors.names()
  # Without its embedding either, the folder holds some other model.
  is_ours = HF_NAMES["embedding"] in names
  if not model.tied_embeddings and is_ours and name not in names:
    raise UserError(
      f"{path}: has no {name}, but config.json says tie_word_embeddings false; "
      "set it to true if the model uses its embedding there"
    )


def _require_tied(tensors: Tensors) -> None:
  """Raises UserError for an unembedding that is not the embedding."""
  names = HF_NAMES["embedding"], HF_NAMES["unembedding"]
  if set(names) <= set(tensors.names()) and not are_equal(tensors, *names):
    raise UserError(
      f"{tensors.source}: {names[1]} is not {names[0]}, but config.json says "
      "tie_word_embeddings true; set it to false to use both"
    )
