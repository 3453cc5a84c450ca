"""Writes tiny GGUF files with the writer of the `gguf` library."""

import gguf

# By the names of Hugging Face's checkpoints.
LAYER_NAMES = {
  "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
  "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
  "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
  "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
  "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
  "mlp.down_proj": "ffn_down",
}  # fmt: skip
OUTER_NAMES = {
  "model.embed_tokens.weight": "token_embd.weight",
  "model.norm.weight": "output_norm.weight",
  "lm_head.weight": "output.weight",
}


def write(path, fields, tensors):
  """Writes a file.

  Args:
    path: where to.
    fields: texts, whole numbers, fractions, claims, or lists of them.
    tensors: by name, arrays to store as they are, or (bytes [..., row], type).
  """
  fields = dict(fields)
  writer = gguf.GGUFWriter(path, fields.pop("general.architecture"))
  for key, value in fields.items():
    add = {
      bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string,
      float: writer.add_float32, list: writer.add_array,
    }[type(value)]  # fmt: skip
    add(key, value)
  for name, tensor in tensors.items():
    raw, kind = tensor if isinstance(tensor, tuple) else (tensor, None)
    writer.add_tensor(name, raw, raw_dtype=kind)
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()


def quantised(array, kind):
  """What `write` takes for a tensor of a quantised type."""
  kind = gguf.GGMLQuantizationType[kind]
  return gguf.quantize(array, kind), kind


def stored_name(name):
  """The name of a tensor that Hugging Face calls `name`."""
  if name in OUTER_NAMES:
    return OUTER_NAMES[name]
  _, _, i, rest = name.split(".", 3)
  part, _, what = rest.rpartition(".")
  return f"blk.{i}.{LAYER_NAMES[part]}.{what}"


def permuted(matrix, n_heads):
  """Rows of queries or keys in the order llama.cpp turns them: pairs."""
  halves = matrix.reshape(n_heads, 2, -1, *matrix.shape[1:])
  return halves.swapaxes(1, 2).reshape(matrix.shape)


def of_model(values, tensors):
  """Fields and tensors for a config.json and the tensors it describes."""
  arch = values["model_type"].replace("mistral", "llama")
  fields = {
    "general.architecture": arch,
    f"{arch}.block_count": values["num_hidden_layers"],
    f"{arch}.context_length": values["max_position_embeddings"],
    f"{arch}.embedding_length": values["hidden_size"],
    f"{arch}.feed_forward_length": values["intermediate_size"],
    f"{arch}.attention.head_count": values["num_attention_heads"],
    f"{arch}.attention.head_count_kv": values["num_key_value_heads"],
    f"{arch}.attention.key_length": values["head_dim"],
    f"{arch}.attention.value_length": values["head_dim"],
    f"{arch}.attention.layer_norm_rms_epsilon": values["rms_norm_eps"],
    f"{arch}.rope.freq_base": values["rope_theta"],
    f"{arch}.rope.dimension_count": values["head_dim"],
  }
  n_heads = {
    "q_proj": values["num_attention_heads"],
    "k_proj": values["num_key_value_heads"],
  }
  stored = {}
  for name, tensor in tensors.items():
    part = name.split(".")[-2]
    if arch == "llama" and part in n_heads:
      tensor = permuted(tensor, n_heads[part])
    stored[stored_name(name)] = tensor
  return fields | tokenizer_fields(values["vocab_size"]), stored


def byte_alphabet():
  """GPT-2's letters for the bytes 0 to 255, in order."""
  printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
  others = iter(range(256, 512))
  return [chr(b if b in printable else next(others)) for b in range(256)]


def tokenizer_fields(n_tokens, pre="gpt-2"):
  """A byte-level tokenizer of some bytes and one special token."""
  joined = "".join(byte_alphabet()[97:99])
  tokens = ["<|endoftext|>", *byte_alphabet()[97:][: n_tokens - 2], joined]
  return {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": pre,
    "tokenizer.ggml.tokens": tokens,
    "tokenizer.ggml.token_type": [3] + [1] * (n_tokens - 1),
    "tokenizer.ggml.merges": [" ".join(joined)],
    "tokenizer.ggml.eos_token_id": 0,
  }
