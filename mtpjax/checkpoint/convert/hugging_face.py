"""Folders as Hugging Face publishes them: config.json and safetensors."""

import functools
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from mtpjax import config as config_lib
from mtpjax.checkpoint.convert import companions, families
from mtpjax.checkpoint.convert.assemble import assemble
from mtpjax.checkpoint.convert.layout import lm_leaves
from mtpjax.checkpoint.convert.source import NO_HEADS, Source
from mtpjax.checkpoint.convert.tensors import Safetensors, Tensors
from mtpjax.checkpoint.convert.wrappers import unwrapped
from mtpjax.errors import UserError
from mtpjax.heads import MultiTokenModel

HF_NAMES = {
  "embedding": "model.embed_tokens.weight",
  "layers/attention_norm/scale": "model.layers.{i}.input_layernorm.weight",
  "layers/attention/query/kernel": "model.layers.{i}.self_attn.q_proj.weight",
  "layers/attention/query/bias": "model.layers.{i}.self_attn.q_proj.bias",
  "layers/attention/key/kernel": "model.layers.{i}.self_attn.k_proj.weight",
  "layers/attention/key/bias": "model.layers.{i}.self_attn.k_proj.bias",
  "layers/attention/value/kernel": "model.layers.{i}.self_attn.v_proj.weight",
  "layers/attention/value/bias": "model.layers.{i}.self_attn.v_proj.bias",
  "layers/attention/query_norm/scale":
    "model.layers.{i}.self_attn.q_norm.weight",
  "layers/attention/key_norm/scale":
    "model.layers.{i}.self_attn.k_norm.weight",
  "layers/attention/out/kernel": "model.layers.{i}.self_attn.o_proj.weight",
  "layers/mlp_norm/scale": "model.layers.{i}.post_attention_layernorm.weight",
  "layers/mlp/gate/kernel": "model.layers.{i}.mlp.gate_proj.weight",
  "layers/mlp/up/kernel": "model.layers.{i}.mlp.up_proj.weight",
  "layers/mlp/down/kernel": "model.layers.{i}.mlp.down_proj.weight",
  "final_norm/scale": "model.norm.weight",
  "unembedding": "lm_head.weight",
}  # fmt: skip


def open_hf(path: str | pathlib.Path) -> Source:
  """Opens a folder of config.json, safetensors and tokenizer.json.

  Args:
    path: the folder, as `save_pretrained` or a download leaves it.

  Returns:
    The source; its parameters are read by `load`.

  Raises:
    UserError: a file is missing or damaged, the architecture is not one of
      `families.FAMILIES`, or the tokenizer is of another vocabulary.
  """
  path = pathlib.Path(path)
  if not path.is_dir():
    what = "is a file" if path.exists() else "no such folder"
    raise UserError(
      f"{path}: {what}; give the folder with config.json and the weights"
    )
  file = path / "config.json"
  values = companions.read_json(file)
  model = families.read_model(values, str(file))
  notes = families.notes(values, str(file))
  stored = Safetensors(path)
  tensors = unwrapped(stored)
  # Before names are made of them all.
  if model.n_layers > len(tensors.names()):
    raise UserError(
      f"{file}: num_hidden_layers {model.n_layers:,} is more than the "
      f"{len(tensors.names()):,} tensors there; copy both again"
    )
  _require_unembedding(path, model, tensors)
  files = companions.add_ends(companions.read_files(path), values, path)
  return Source(
    model=model,
    heads=NO_HEADS,
    load=functools.partial(_load, tensors),
    files=files,
    data=companions.data_fields(path, files, model.vocab_size),
    origin={
      "format": "hugging-face",
      "path": str(path.absolute()),
      "architecture": families.architecture(values, str(file)),
      "max_length": families.max_length(values, str(file)),
      "bytes": {file.name: file.stat().st_size for file in stored.files()},
    },
    notes=notes,
  )


def _load(
  tensors: Tensors, model: MultiTokenModel, **kwargs: Any
) -> dict[str, Any]:
  is_tied = model.config.tied_embeddings
  if is_tied:
    _require_tied(tensors)

  def is_ignored(name: str) -> bool:
    # Old checkpoints keep the frequencies, which follow from the config.
    return name.endswith("rotary_emb.inv_freq") or (
      is_tied and name == HF_NAMES["unembedding"]
    )

  leaves = lm_leaves(model.config, HF_NAMES)
  lm = assemble(
    model.abstract()["lm"], leaves, tensors, model.mesh, is_ignored, **kwargs
  )
  return {"lm": lm}


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
  if not set(names) <= set(tensors.names()):
    return
  pairs = zip(*(_read_in_blocks(tensors, name) for name in names), strict=True)
  if tensors.shape(names[0]) != tensors.shape(names[1]) or not all(
    np.array_equal(a, b) for a, b in pairs
  ):
    raise UserError(
      f"{tensors.source}: {names[1]} is not {names[0]}, but config.json says "
      "tie_word_embeddings true; set it to false to use both"
    )


def _read_in_blocks(tensors: Tensors, name: str) -> Iterator[np.ndarray]:
  rows = 4096  # a few ten MB at usual widths
  for start in range(0, tensors.shape(name)[0], rows):
    yield tensors.read(name, slice(start, start + rows))
