"""GGUF files, as llama.cpp and its relatives use them, into parameters."""

import hashlib
import pathlib
from typing import Any

import numpy as np

from mtpjax import config as config_lib
from mtpjax.checkpoint.convert.assemble import assemble
from mtpjax.checkpoint.convert.containers.gguf import (
  Container,
  GgufTensors,
  read_container,
)
from mtpjax.checkpoint.convert.format import Format, Source
from mtpjax.checkpoint.convert.formats.gguf_tokenizer import tokenizer_files
from mtpjax.checkpoint.convert.layout import lm_leaves
from mtpjax.config.published import Fields
from mtpjax.errors import UserError
from mtpjax.heads import MultiTokenModel

GGUF_NAMES = {
  "embedding": "token_embd.weight",
  "layers/attention_norm/scale": "blk.{i}.attn_norm.weight",
  "layers/attention/query/kernel": "blk.{i}.attn_q.weight",
  "layers/attention/query/bias": "blk.{i}.attn_q.bias",
  "layers/attention/key/kernel": "blk.{i}.attn_k.weight",
  "layers/attention/key/bias": "blk.{i}.attn_k.bias",
  "layers/attention/value/kernel": "blk.{i}.attn_v.weight",
  "layers/attention/value/bias": "blk.{i}.attn_v.bias",
  "layers/attention/out/kernel": "blk.{i}.attn_output.weight",
  "layers/attention/query_norm/scale": "blk.{i}.attn_q_norm.weight",
  "layers/attention/key_norm/scale": "blk.{i}.attn_k_norm.weight",
  "layers/mlp_norm/scale": "blk.{i}.ffn_norm.weight",
  "layers/mlp/gate/kernel": "blk.{i}.ffn_gate.weight",
  "layers/mlp/up/kernel": "blk.{i}.ffn_up.weight",
  "layers/mlp/down/kernel": "blk.{i}.ffn_down.weight",
  "final_norm/scale": "output_norm.weight",
  "unembedding": "output.weight",
}
_ROPE_FACTORS = "rope_freqs.weight"
# Whether queries and keys are stored in rotary pairs; their converter permutes
# the rows of Llama's only.
_IS_PAIRED = {"llama": True, "qwen2": False, "qwen3": False}
_KINDS = (
  "F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1",
  "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
)  # fmt: skip
# Of the fields of an architecture, those that say nothing which matters here.
_SILENT_FIELDS = {
  "context_length", "vocab_size", "rope.scaling.original_context_length",
  "rope.scaling.finetuned", "tensor_data_layout",
}  # fmt: skip
# What Llama 3.1 and later were trained with; only the factor differs.
_LLAMA3_ROPE = {
  "rope_low_freq_factor": 1.0,
  "rope_high_freq_factor": 4.0,
  "rope_original_length": 8192,
}


def open(path: pathlib.Path) -> Source:
  """Opens a GGUF file of a Llama, Mistral, SmolLM, Qwen2 or Qwen3 model.

  Args:
    path: the file.

  Returns:
    The model, its tokenizer, and how to read its parameters: tensor by tensor,
    dequantised to float32.

  Raises:
    UserError: the file is not GGUF, cut off or damaged, or of an architecture,
      a type of tensors or a tokenizer that is not supported.
  """
  container = read_container(path)
  _require_whole(container)
  architecture = container.read().text("general.architecture")
  model = _model(container, architecture)
  leaves = lm_leaves(model, GGUF_NAMES, paired=_IS_PAIRED[architecture])
  tensors = GgufTensors(container)

  def load(target: MultiTokenModel, **kwargs: Any) -> dict[str, Any]:
    boxes = target.abstract()["lm"]
    return {
      "lm": assemble(
        boxes,
        leaves,
        tensors,
        target.mesh,
        lambda name: name == _ROPE_FACTORS,
        **kwargs,
      )  # fmt: skip
    }

  with path.open("rb") as file:
    digest = hashlib.file_digest(file, "sha256").hexdigest()
  return Source(
    model=model,
    heads=config_lib.Heads.none(),
    load=load,
    tokenizer=tokenizer_files(container),
    origin={
      "format": "gguf",
      "path": str(path.absolute()),
      "architecture": architecture,
      "max_length": container.read(f"{architecture}.").integer(
        "context_length", 0, least=0
      ),
      "bytes": {path.name: path.stat().st_size},
      "sha256": digest,
    },
  )


FORMAT = Format(
  help="a GGUF file, its tokenizer included", metavar="FILE", open=open
)


def _require_whole(container: Container) -> None:
  """Raises UserError for a part of a model, or a type that is not read."""
  n_parts = container.read().integer("split.count", 1, least=0)
  if n_parts > 1:
    raise UserError(
      f"{container.path}: is one of {n_parts} files; join them with "
      "llama-gguf-split --merge"
    )
  for name, stored in container.tensors.items():
    if stored.kind not in _KINDS:
      raise UserError(
        f"{container.path}: the tensor {name} is of type {stored.kind}; "
        f"supported are {', '.join(_KINDS)}; get the model in one of these"
      )


def _model(container: Container, architecture: str) -> config_lib.Model:
  """Reads the architecture from the fields and the shapes of tensors."""
  path, tensors = container.path, container.tensors
  if architecture not in _IS_PAIRED:
    raise UserError(
      f"{path}: general.architecture is {architecture!r}; supported are "
      f"{', '.join(_IS_PAIRED)} (llama is also Mistral and SmolLM)"
    )
  fields = container.read(f"{architecture}.")
  sizes = _sizes(fields, container)
  sizes |= _rope(fields, container, sizes)
  if unknown := fields.unread(_SILENT_FIELDS):
    raise UserError(
      f"{path}: the field {unknown} is not known here and may change the "
      "model; give the model's Hugging Face folder"
    )
  try:
    return config_lib.Model(
      **sizes,
      qkv_bias=architecture == "qwen2",
      qk_norm=architecture == "qwen3",
      tied_embeddings=GGUF_NAMES["unembedding"] not in tensors,
      dtype="float32",
      param_dtype="float32",
    )
  except UserError as error:
    raise UserError(f"{path}: {error}") from error


def _sizes(fields: Fields, container: Container) -> dict[str, Any]:
  """Reads what is counted, and refuses what is not supported."""
  tensors = container.tensors
  width = fields.integer("embedding_length")
  n_heads = fields.integer("attention.head_count")
  d_head = fields.integer("attention.key_length", width // n_heads)
  for key, only in (
    ("attention.value_length", d_head),
    ("rope.dimension_count", d_head),
    ("attention.causal", True),
    ("expert_count", 0),
    ("expert_used_count", 0),
  ):
    fields.require(key, only)
  embedding = tensors.get(GGUF_NAMES["embedding"])
  if embedding is None:
    raise UserError(
      f"{container.path}: holds no tensor {GGUF_NAMES['embedding']}; give a "
      "file of a whole model, not of a vocabulary or an adapter"
    )
  n_layers = fields.integer("block_count")
  n_stored = len({n.split(".")[1] for n in tensors if n.startswith("blk.")})
  if n_layers != n_stored:
    raise fields.error("block_count", f"is not that of the {n_stored} stored")
  return dict(
    vocab_size=embedding.shape[0],
    d_model=width,
    n_layers=n_layers,
    n_attention_heads=n_heads,
    n_kv_heads=fields.integer("attention.head_count_kv", n_heads),
    d_head=d_head,
    d_ff=fields.integer("feed_forward_length"),
    sliding_window=fields.integer("attention.sliding_window", 0, least=0),
    rope_theta=_decimal(fields.number("rope.freq_base", 10_000.0)),
    norm_eps=_decimal(fields.number("attention.layer_norm_rms_epsilon")),
  )


def _rope(
  fields: Fields, container: Container, sizes: dict[str, Any]
) -> dict[str, Any]:
  """Reads how rotary positions are scaled; nothing where they are not."""
  key = "rope.scaling.type"
  has_factor = fields.get("rope.scaling.factor") is not None
  # A factor without a type is linear, as llama.cpp reads it.
  scaling = fields.text(key, "linear" if has_factor else "none")
  is_linear = scaling == "linear"
  default = None if is_linear else 1.0
  factor = fields.number("rope.scaling.factor", default, least=1)
  fields.require("rope.scaling.attn_factor", 1.0)
  if _ROPE_FACTORS in container.tensors:
    fields.require(key, "none")
    return _llama3_rope(container, sizes["rope_theta"], sizes["d_head"])
  if scaling != "none":
    fields.require(key, "linear")
  if is_linear and factor != 1.0:
    return dict(rope_scaling="linear", rope_factor=_decimal(factor))
  return {}


def _decimal(value: float) -> float:
  """Returns 1e-5 for the float32 that is nearest to it, and so on."""
  return float(str(np.float32(value)))


def _llama3_rope(
  container: Container, theta: float, d_head: int
) -> dict[str, Any]:
  """Finds the settings that give the stored divisors of rotary frequencies."""
  stored = GgufTensors(container).read(_ROPE_FACTORS)
  half = d_head // 2
  factor = _decimal(stored.max())
  low, high, length = _LLAMA3_ROPE.values()
  turns = length * theta ** (-np.arange(half) / half) / (2 * np.pi)
  smooth = np.clip((turns - low) / (high - low), 0, 1)
  expected = 1 / ((1 - smooth) / factor + smooth)
  if stored.shape != (half,) or not np.allclose(stored, expected, rtol=1e-5):
    raise UserError(
      f"{container.path}: the tensor {_ROPE_FACTORS} holds other rotary "
      "factors than those of Llama 3.1 and later; give the model's "
      "Hugging Face folder"
    )
  return dict(rope_scaling="llama3", rope_factor=factor, **_LLAMA3_ROPE)
