"""GGUF files, as llama.cpp and its relatives use them, into parameters."""

import hashlib
import math
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
  architecture = container.field("general.architecture", str, ...)
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
      "max_length": container.field(f"{architecture}.context_length", int, 0),
      "bytes": {path.name: path.stat().st_size},
      "sha256": digest,
    },
  )


FORMAT = Format(
  help="a GGUF file, its tokenizer included", metavar="FILE", open=open
)


def _require_whole(container: Container) -> None:
  """Raises UserError for a part of a model, or a type that is not read."""
  n_parts = container.field("split.count", int, 1)
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
  seen = set(_SILENT_FIELDS)

  def field(key: str, kinds: type, default: Any = ...) -> Any:
    seen.add(key)
    return container.field(f"{architecture}.{key}", kinds, default)

  def require(key: str, value: Any, only: Any) -> None:
    if value != only:
      raise UserError(
        f"{path}: {architecture}.{key} is {value!r}, only {only!r} is "
        "supported; convert a model that has it so"
      )

  width = field("embedding_length", int)
  n_heads = field("attention.head_count", int)
  d_head = field("attention.key_length", int, width // max(n_heads, 1))
  same_width = ("attention.value_length", "rope.dimension_count")
  for key in same_width:
    require(key, field(key, int, d_head), d_head)
  require("attention.causal", field("attention.causal", bool, True), True)
  for key in ("expert_count", "expert_used_count"):
    require(key, field(key, int, 0), 0)
  embedding = tensors.get(GGUF_NAMES["embedding"])
  if embedding is None:
    raise UserError(
      f"{path}: holds no tensor {GGUF_NAMES['embedding']}; give a file of a "
      "whole model, not of a vocabulary or an adapter"
    )
  n_layers = field("block_count", int)
  n_stored = len({n.split(".")[1] for n in tensors if n.startswith("blk.")})
  if n_layers != n_stored:
    raise UserError(
      f"{path}: {architecture}.block_count is {n_layers}, but there are "
      f"tensors of {n_stored} layers; copy the file again"
    )
  theta = field("rope.freq_base", float, 10_000.0)
  epsilon = field("attention.layer_norm_rms_epsilon", float)
  for key, value in (
    ("rope.freq_base", theta),
    ("attention.layer_norm_rms_epsilon", epsilon),
  ):
    if not 0 < value < math.inf:
      raise UserError(
        f"{path}: {architecture}.{key} is {value!r}, which must be finite and "
        "greater than 0; convert the model to GGUF again"
      )
  sizes = dict(
    vocab_size=embedding.shape[0],
    d_model=width,
    n_layers=n_layers,
    n_attention_heads=n_heads,
    n_kv_heads=field("attention.head_count_kv", int, n_heads),
    d_head=d_head,
    d_ff=field("feed_forward_length", int),
    sliding_window=field("attention.sliding_window", int, 0),
    rope_theta=_decimal(theta),
    norm_eps=_decimal(epsilon),
  )
  # A factor without a type is linear, as llama.cpp reads it.
  has_factor = f"{architecture}.rope.scaling.factor" in container.fields
  scaling = field("rope.scaling.type", str, "linear" if has_factor else "none")
  factor = field(
    "rope.scaling.factor", float, ... if scaling == "linear" else 1.0
  )
  if not 1 <= factor < math.inf:
    raise UserError(
      f"{path}: {architecture}.rope.scaling.factor is {factor!r}, which must "
      "be finite and at least 1; convert the model to GGUF again"
    )
  attention_factor = field("rope.scaling.attn_factor", float, 1.0)
  require("rope.scaling.attn_factor", attention_factor, 1.0)
  if scaling == "linear" and factor != 1.0:
    sizes |= dict(rope_scaling="linear", rope_factor=_decimal(factor))
  elif scaling not in ("none", "linear"):
    require("rope.scaling.type", scaling, "linear")
  if _ROPE_FACTORS in tensors:
    require("rope.scaling.type", scaling, "none")
    sizes |= _llama3_rope(container, sizes["rope_theta"], d_head)
  of_architecture = {
    key.removeprefix(f"{architecture}.")
    for key in container.fields
    if key.startswith(f"{architecture}.")
  }
  if unknown := sorted(of_architecture - seen):
    raise UserError(
      f"{path}: the field {architecture}.{unknown[0]} is not known here and "
      "may change the model; give the model's Hugging Face folder"
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
