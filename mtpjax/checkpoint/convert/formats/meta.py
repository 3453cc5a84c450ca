"""Folders as Meta publishes them: params.json and consolidated.00.pth.

The layout of the multi-token models of Gloeckle et al. 2024: the trunk and the
next-token head are `layers.N`, numbered on; other heads are `extra_heads.J`.
With n heads of a model of L layers there are L - n + 1 of the former and n - 1
of the latter, and every head reads what the last of `layers` reads:

  layers.0 ... layers.27 | layers.28 | extra_heads.0 ... extra_heads.2
  trunk                  | offset 1  | offsets 2 to 4
"""

import functools
import pathlib
from typing import Any

import jax.numpy as jnp

from mtpjax import config as config_lib
from mtpjax.checkpoint.convert.assemble import assemble
from mtpjax.checkpoint.convert.containers.safetensors import Safetensors
from mtpjax.checkpoint.convert.containers.tensors import Tensors
from mtpjax.checkpoint.convert.containers.torch_archive import TorchArchive
from mtpjax.checkpoint.convert.containers.wrappers import unwrapped
from mtpjax.checkpoint.convert.format import Format, Source
from mtpjax.checkpoint.convert.layout import below, block_leaves, lm_leaves
from mtpjax.config.published import Fields, read_object
from mtpjax.errors import UserError
from mtpjax.heads import MultiTokenModel

_LAYER_NAMES = {
  "attention_norm/scale": "attention_norm.weight",
  "attention/query/kernel": "attention.wq.weight",
  "attention/key/kernel": "attention.wk.weight",
  "attention/value/kernel": "attention.wv.weight",
  "attention/out/kernel": "attention.wo.weight",
  "mlp_norm/scale": "ffn_norm.weight",
  "mlp/gate/kernel": "feed_forward.w1.weight",
  "mlp/up/kernel": "feed_forward.w3.weight",
  "mlp/down/kernel": "feed_forward.w2.weight",
}
META_NAMES = {
  "embedding": "tok_embeddings.weight",
  "final_norm/scale": "norm.weight",
  "unembedding": "output.weight",
} | {f"layers/{path}": f"layers.{{i}}.{n}" for path, n in _LAYER_NAMES.items()}
# Frequencies, which follow from params.json.
_FREQUENCIES = "rope.freqs"
# Fields of params.json that say nothing the weights do not.
_SILENT_FIELDS = {
  "multiple_of", "ffn_dim_multiplier", "max_seq_len", "max_batch_size",
}  # fmt: skip


def open(path: pathlib.Path) -> Source:
  """Opens a folder of params.json, consolidated.00.pth and tokenizer.json.

  Args:
    path: the folder; consolidated.safetensors (or consolidated.00.safetensors)
      with the same names serves as well.

  Returns:
    The source, with block heads where there are extra heads.

  Raises:
    UserError: a file is missing or damaged, the weights are in several parts,
      or params.json says something that is not supported.
  """
  if not path.is_dir():
    what = "is a file" if path.exists() else "no such folder"
    raise UserError(
      f"{path}: {what}; give the folder with params.json and "
      "consolidated.00.pth"
    )
  file = path / "params.json"
  params = Fields(
    read_object(file),
    str(file),
    "copy the file again, or get the model in Hugging Face's format and use "
    "`mtpjax convert hf`",
  )
  weights = _weights_file(path)
  if not (path / "tokenizer.json").is_file():
    raise UserError(
      f"{path}: has no tokenizer.json (a tokenizer.model is not read); put the "
      "one of the same vocabulary there, as Hugging Face has it, or make it in "
      "transformers: LlamaTokenizerFast(vocab_file='tokenizer.model')"
      ".save_pretrained('.')"
    )
  tensors = unwrapped(
    TorchArchive(weights) if weights.suffix == ".pth" else Safetensors(weights)
  )
  model, heads = _read_model(params, tensors)
  return Source(
    model=model,
    heads=heads,
    load=functools.partial(_load, tensors),
    tokenizer=path,
    origin={
      "format": "meta",
      "path": str(path.absolute()),
      "bytes": {weights.name: weights.stat().st_size},
    },
  )


FORMAT = Format(
  help="Meta's own layout: consolidated.*.pth and params.json", open=open
)


def _load(
  tensors: Tensors, model: MultiTokenModel, **kwargs: Any
) -> dict[str, Any]:
  # In one go: names and shapes of all are checked before anything is read, and
  # nothing that is stored is left out.
  leaves = below("lm", lm_leaves(model.config, META_NAMES, paired=True))
  if model.heads.n_extra:
    leaves += below("heads", block_leaves(
      model.config, _LAYER_NAMES, "layer", "extra_heads.{i}.", paired=True
    ))  # fmt: skip
  return assemble(
    model.abstract(), leaves, tensors, model.mesh,
    lambda name: name == _FREQUENCIES, **kwargs,
  )  # fmt: skip


def _weights_file(path: pathlib.Path) -> pathlib.Path:
  found = sorted(path.glob("consolidated.*.pth"))
  if len(found) > 1:
    raise UserError(
      f"{path}: the weights are in {len(found)} parts (model parallel); "
      "convert them with transformers' convert_llama_weights_to_hf.py "
      "and use `mtpjax convert hf`, or merge them into one consolidated.00.pth"
    )
  names = ("consolidated.safetensors", "consolidated.00.safetensors")
  found += [path / name for name in names if (path / name).is_file()]
  if len(found) != 1:
    listed = ", ".join(file.name for file in found) or "none"
    raise UserError(
      f"{path}: one file of weights belongs here, consolidated.00.pth or "
      f"consolidated.safetensors; found {listed}"
    )
  return found[0]


def _read_model(
  params: Fields, tensors: Tensors
) -> tuple[config_lib.Model, config_lib.Heads]:
  width, n_heads = params.integer("dim"), params.integer("n_heads")
  n_layers = params.integer("n_layers")
  n_future = params.integer("n_future_tokens", 1)
  # -1 is that of the tokenizer.
  vocab_size = -1
  if params.get("vocab_size") != -1:
    vocab_size = params.integer("vocab_size", -1)
  n_kv_heads = params.integer("n_kv_heads", n_heads)
  theta = params.number("rope_theta", 10_000.0)
  epsilon = params.number("norm_eps")
  params.require("use_scaled_rope", False)
  if unknown := params.unread(_SILENT_FIELDS):
    raise UserError(
      f"{params.source}: the field {unknown} is not known here and may change "
      "the model; remove it if it does not, or use `mtpjax convert hf`"
    )
  if n_layers < n_future + (n_future > 1):
    raise params.error(
      "n_future_tokens", f"does not leave a trunk of n_layers {n_layers}"
    )
  if width % n_heads:
    raise params.error("n_heads", f"does not divide dim {width}")
  there = set(tensors.names())
  if n_layers > len(there):  # before names are made of them all
    raise UserError(
      f"{params.source}: n_layers {n_layers:,} is more than the {len(there):,} "
      "tensors there; copy both again"
    )
  sizing = (META_NAMES["embedding"], "layers.0.feed_forward.w1.weight")
  for name in (*sizing, META_NAMES["final_norm/scale"]):
    if name not in there:
      raise UserError(
        f"{tensors.source}: {name} is missing; copy the whole checkpoint"
      )
  stored_vocab, d_ff = (tensors.shape(name)[0] for name in sizing)
  is_bfloat16 = tensors.read(META_NAMES["final_norm/scale"]).dtype == (
    jnp.bfloat16
  )
  dtype = "bfloat16" if is_bfloat16 else "float32"
  try:
    model = config_lib.Model(
      vocab_size=stored_vocab if vocab_size == -1 else vocab_size,
      d_model=width,
      n_layers=n_layers - n_future + 1,
      n_attention_heads=n_heads,
      n_kv_heads=n_kv_heads,
      d_head=width // n_heads,
      d_ff=d_ff,
      rope_theta=theta,
      norm_eps=epsilon,
      dtype=dtype,
      param_dtype=dtype,
    )
  except UserError as error:
    raise UserError(f"{params.source}: {error}") from error
  if n_future == 1:
    return model, config_lib.Heads.none()
  return model, config_lib.Heads(
    kind="block",
    tap="before_last",
    offsets=tuple(range(1, n_future + 1)),
    matched=False,
  )
