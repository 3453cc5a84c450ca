"""Tiny random checkpoints in the layout Hugging Face publishes."""

import json

import numpy as np

COMMON = {
  "vocab_size": 48,
  "hidden_size": 24,
  "intermediate_size": 40,
  "num_hidden_layers": 2,
  "num_attention_heads": 4,
  "num_key_value_heads": 2,
  "head_dim": 8,
  "hidden_act": "silu",
  "max_position_embeddings": 64,
  "rms_norm_eps": 1e-5,
  "rope_theta": 10_000.0,
  "rope_scaling": None,
  "tie_word_embeddings": False,
  "torch_dtype": "float32",
  "eos_token_id": 1,
}
FAMILIES = {
  "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama"},
  "mistral": {
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "sliding_window": 5,
  },
  "qwen2": {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "use_sliding_window": False,
    "sliding_window": 5,
    "max_window_layers": 2,
  },
  "qwen3": {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "attention_bias": False,
    "use_sliding_window": False,
    "sliding_window": None,
    "max_window_layers": 2,
  },
}


def config_values(family, **changes):
  """All of a config.json, no field left out."""
  return COMMON | FAMILIES[family] | changes


def random_tensors(values, seed=0, dtype=np.float32):
  """Weights by name: matrices [out, in], one per layer."""
  rng = np.random.default_rng(seed)
  d, f, v = (
    values[name] for name in ("hidden_size", "intermediate_size", "vocab_size")
  )
  n, k, h = (
    values[name]
    for name in ("num_attention_heads", "num_key_value_heads", "head_dim")
  )
  shapes = {"model.embed_tokens.weight": (v, d)}
  for i in range(values["num_hidden_layers"]):
    layer = {
      "input_layernorm.weight": (d,),
      "self_attn.q_proj.weight": (n * h, d),
      "self_attn.k_proj.weight": (k * h, d),
      "self_attn.v_proj.weight": (k * h, d),
      "self_attn.o_proj.weight": (d, n * h),
      "post_attention_layernorm.weight": (d,),
      "mlp.gate_proj.weight": (f, d),
      "mlp.up_proj.weight": (f, d),
      "mlp.down_proj.weight": (d, f),
    }
    if values["model_type"] == "qwen2":
      layer |= {
        "self_attn.q_proj.bias": (n * h,),
        "self_attn.k_proj.bias": (k * h,),
        "self_attn.v_proj.bias": (k * h,),
      }
    if values["model_type"] == "qwen3":
      layer |= {
        "self_attn.q_norm.weight": (h,),
        "self_attn.k_norm.weight": (h,),
      }
    shapes |= {f"model.layers.{i}.{name}": s for name, s in layer.items()}
  shapes["model.norm.weight"] = (d,)
  if not values["tie_word_embeddings"]:
    shapes["lm_head.weight"] = (v, d)
  # Far from the zeros and ones that would hide a missing bias or scale.
  return {
    name: rng.normal(1.0 if "norm" in name else 0.0, 0.4, shape).astype(dtype)
    for name, shape in shapes.items()
  }


def tokenizer_json(n_words=38, begins=True):
  """A tokenizer of <s>, </s> and words, 40 tokens if not said otherwise."""
  import tokenizers
  from tokenizers import models, pre_tokenizers, processors

  words = ["<s>", "</s>", "a", *(f"w{i}" for i in range(n_words - 1))]
  tokenizer = tokenizers.Tokenizer(
    models.WordLevel({word: i for i, word in enumerate(words)}, "a")
  )
  tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
  tokenizer.add_special_tokens(["<s>", "</s>"])
  if begins:
    tokenizer.post_processor = processors.TemplateProcessing(
      single="<s> $A", special_tokens=[("<s>", 0)]
    )
  return tokenizer.to_str()


def write(folder, values, tensors, tokenizer=None, shards=0, **files):
  """Writes a checkpoint.

  Args:
    folder: made if needed.
    values: for config.json.
    tensors: by name.
    tokenizer: the text of tokenizer.json; None takes `tokenizer_json`'s.
    shards: files of weights, with an index; 0 writes model.safetensors.
    **files: more JSON files, by name without their ending.
  """
  from safetensors.numpy import save_file

  folder.mkdir(parents=True, exist_ok=True)
  for name, content in {"config": values, **files}.items():
    (folder / f"{name}.json").write_text(json.dumps(content))
  (folder / "tokenizer.json").write_text(tokenizer or tokenizer_json())
  metadata = {"format": "pt"}
  if not shards:
    save_file(tensors, folder / "model.safetensors", metadata)
    return folder
  weight_map = {}
  for n in range(shards):
    file = f"model-{n + 1:05}-of-{shards:05}.safetensors"
    names = sorted(tensors)[n::shards]
    save_file({name: tensors[name] for name in names}, folder / file, metadata)
    weight_map |= dict.fromkeys(names, file)
  index = {"metadata": {}, "weight_map": weight_map}
  (folder / "model.safetensors.index.json").write_text(json.dumps(index))
  return folder


def load_file(file):
  """The tensors of a file, by the `safetensors` library."""
  from safetensors import numpy

  return numpy.load_file(file)


def read_tensors(folder):
  """All tensors of a checkpoint."""
  tensors = {}
  for file in sorted(folder.glob("*.safetensors")):
    tensors |= load_file(file)
  return tensors
