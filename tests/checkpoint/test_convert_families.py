"""config.json of published models, to a configuration and back."""

import json

import hf_checkpoints
import pytest

from mtpjax import config as config_lib
from mtpjax.checkpoint.convert import families
from mtpjax.errors import UserError

# Of published models, as far as they decide anything.
PUBLISHED = {
  "SmolLM2-135M": (
    """{"architectures": ["LlamaForCausalLM"], "attention_bias": false,
    "hidden_act": "silu", "hidden_size": 576, "intermediate_size": 1536,
    "max_position_embeddings": 8192, "mlp_bias": false, "model_type": "llama",
    "num_attention_heads": 9, "num_hidden_layers": 30,
    "num_key_value_heads": 3, "rms_norm_eps": 1e-05, "rope_scaling": null,
    "rope_theta": 100000, "tie_word_embeddings": true,
    "torch_dtype": "bfloat16", "vocab_size": 49152}""",
    dict(
      vocab_size=49152, d_model=576, n_layers=30, n_attention_heads=9,
      n_kv_heads=3, d_head=64, d_ff=1536, rope_theta=100000.0,
      tied_embeddings=True, dtype="bfloat16", param_dtype="bfloat16",
    ),
  ),
  "Llama-3.2-1B": (
    """{"architectures": ["LlamaForCausalLM"], "head_dim": 64,
    "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 8192,
    "max_position_embeddings": 131072, "num_attention_heads": 32,
    "num_hidden_layers": 16, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
    "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0,
      "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
      "rope_type": "llama3"},
    "rope_theta": 500000.0, "tie_word_embeddings": true,
    "torch_dtype": "bfloat16", "vocab_size": 128256}""",
    dict(
      vocab_size=128256, d_model=2048, n_layers=16, n_attention_heads=32,
      n_kv_heads=8, d_head=64, d_ff=8192, rope_theta=500000.0,
      rope_scaling="llama3", rope_factor=32.0, rope_low_freq_factor=1.0,
      rope_high_freq_factor=4.0, rope_original_length=8192,
      tied_embeddings=True, dtype="bfloat16", param_dtype="bfloat16",
    ),
  ),
  "Llama-2-7b": (
    """{"architectures": ["LlamaForCausalLM"], "hidden_act": "silu",
    "hidden_size": 4096, "intermediate_size": 11008,
    "num_attention_heads": 32, "num_hidden_layers": 32,
    "rms_norm_eps": 1e-05, "tie_word_embeddings": false,
    "torch_dtype": "float16", "vocab_size": 32000}""",
    dict(
      vocab_size=32000, d_model=4096, n_layers=32, n_attention_heads=32,
      n_kv_heads=32, d_head=128, d_ff=11008, dtype="float32",
    ),
  ),
  "Mistral-7B-v0.1": (
    """{"architectures": ["MistralForCausalLM"], "hidden_act": "silu",
    "hidden_size": 4096, "intermediate_size": 14336,
    "max_position_embeddings": 32768, "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16",
    "vocab_size": 32000}""",
    dict(
      vocab_size=32000, d_model=4096, n_layers=32, n_attention_heads=32,
      n_kv_heads=8, d_head=128, d_ff=14336, sliding_window=4096,
      dtype="bfloat16", param_dtype="bfloat16",
    ),
  ),
  "Mistral-Nemo": (
    """{"architectures": ["MistralForCausalLM"], "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 5120, "intermediate_size": 14336,
    "num_attention_heads": 32, "num_hidden_layers": 40,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0,
    "sliding_window": null, "tie_word_embeddings": false,
    "torch_dtype": "bfloat16", "vocab_size": 131072}""",
    dict(
      vocab_size=131072, d_model=5120, n_layers=40, n_attention_heads=32,
      n_kv_heads=8, d_head=128, d_ff=14336, rope_theta=1e6,
      dtype="bfloat16", param_dtype="bfloat16",
    ),
  ),
  "Qwen2.5-0.5B": (
    """{"architectures": ["Qwen2ForCausalLM"], "hidden_act": "silu",
    "hidden_size": 896, "intermediate_size": 4864, "max_window_layers": 24,
    "num_attention_heads": 14, "num_hidden_layers": 24,
    "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0, "sliding_window": 32768,
    "tie_word_embeddings": true, "torch_dtype": "bfloat16",
    "use_sliding_window": false, "vocab_size": 151936}""",
    dict(
      vocab_size=151936, d_model=896, n_layers=24, n_attention_heads=14,
      n_kv_heads=2, d_head=64, d_ff=4864, rope_theta=1e6, norm_eps=1e-6,
      qkv_bias=True, tied_embeddings=True, dtype="bfloat16",
      param_dtype="bfloat16",
    ),
  ),
  "Qwen3-0.6B": (
    """{"architectures": ["Qwen3ForCausalLM"], "attention_bias": false,
    "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024,
    "intermediate_size": 3072, "max_window_layers": 28,
    "num_attention_heads": 16, "num_hidden_layers": 28,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": null,
    "rope_theta": 1000000, "sliding_window": null,
    "tie_word_embeddings": true, "torch_dtype": "bfloat16",
    "use_sliding_window": false, "vocab_size": 151936}""",
    dict(
      vocab_size=151936, d_model=1024, n_layers=28, n_attention_heads=16,
      n_kv_heads=8, d_head=128, d_ff=3072, rope_theta=1e6, norm_eps=1e-6,
      qk_norm=True, tied_embeddings=True, dtype="bfloat16",
      param_dtype="bfloat16",
    ),
  ),
}  # fmt: skip


@pytest.mark.parametrize("text, expected", PUBLISHED.values(), ids=PUBLISHED)
def test_published_configurations(text, expected):
  expected = config_lib.Model(**expected)
  assert families.read_model(json.loads(text), "config.json") == expected


@pytest.mark.parametrize("text", [p[0] for p in PUBLISHED.values()],
                         ids=PUBLISHED)  # fmt: skip
def test_what_is_written_is_read_as_the_same_model(text):
  values = json.loads(text)
  model = families.read_model(values, "config.json")
  dtype = model.param_dtype
  written = families.write_values(model, model.n_layers, dtype, 99)
  written = json.loads(json.dumps(written))
  assert families.read_model(written, "again") == model
  # Mistral without a window is Llama, by another name.
  is_llama = values["architectures"] == ["MistralForCausalLM"] and (
    not model.sliding_window
  )
  assert written["architectures"] == (
    ["LlamaForCausalLM"] if is_llama else values["architectures"]
  )
  assert written["max_position_embeddings"] == 99
  for name in values.keys() & written.keys() - {
    "architectures", "max_position_embeddings", "model_type", "torch_dtype",
  }:  # fmt: skip
    if "window" not in name:
      assert written[name] == values[name], name


def test_a_window_is_written_for_every_family():
  for changes in ({}, {"qkv_bias": True}, {"qk_norm": True}):
    model = config_lib.Model(
      vocab_size=48, sliding_window=7, dtype="float32", **changes
    )
    written = families.write_values(model, 6, "float32", 99)
    assert families.read_model(written, "again") == model


def test_no_family_has_both_biases_and_norms():
  model = config_lib.Model(vocab_size=48, qkv_bias=True, qk_norm=True)
  with pytest.raises(UserError, match="model.qk_norm: .* cannot be exported"):
    families.write_values(model, 6, "float32", 99)


def read(family="llama", **changes):
  values = hf_checkpoints.config_values(family, **changes)
  return families.read_model(values, "config.json")


def drop(family, *names):
  values = hf_checkpoints.config_values(family)
  for name in names:
    del values[name]
  return families.read_model(values, "config.json")


def test_fields_left_out_are_those_of_the_family():
  assert drop("llama", "num_key_value_heads").n_kv_heads == 4
  assert drop("llama", "head_dim").d_head == 6
  assert drop("llama", "rms_norm_eps").norm_eps == 1e-6
  assert drop("llama", "rope_theta").rope_theta == 10_000.0
  assert not drop("llama", "tie_word_embeddings").tied_embeddings
  assert drop("mistral", "sliding_window").sliding_window == 4096
  assert drop("qwen2", "use_sliding_window").sliding_window == 0
  assert drop("qwen3", "head_dim").d_head == 128
  assert drop("llama", "torch_dtype").param_dtype == "float32"


@pytest.mark.parametrize(
  "names", [{"torch_dtype": "bfloat16"}, {"dtype": "bfloat16"}]
)
def test_both_names_of_the_dtype(names):
  assert read(**names).dtype == "bfloat16"


LINEAR = {"factor": 2.0}


@pytest.mark.parametrize(
  "changes",
  [
    {"rope_scaling": LINEAR | {"type": "linear"}},
    {"rope_scaling": LINEAR | {"rope_type": "linear"}},
    {
      "rope_theta": None,
      "rope_parameters": LINEAR
      | {"rope_type": "linear", "rope_theta": 10_000.0},
    },
    {"rope_parameters": LINEAR | {"rope_type": "linear"}},
  ],
)
def test_all_spellings_of_rotary_scaling(changes):
  model = read(**changes)
  assert model.rope_scaling == "linear" and model.rope_factor == 2.0
  assert model.rope_theta == 10_000.0


def test_the_newest_spelling_without_scaling():
  parameters = {"rope_type": "default", "rope_theta": 5e5}
  model = read(rope_theta=None, rope_parameters=parameters)
  assert model.rope_scaling == "none" and model.rope_theta == 5e5


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_windows_of_some_layers_are_refused(family):
  windowed = {"use_sliding_window": True, "sliding_window": 5}
  assert read(family, **windowed, max_window_layers=0).sliding_window == 5
  assert read(family, **windowed, max_window_layers=2).sliding_window == 0
  with pytest.raises(UserError, match="use_sliding_window true for 1 of 2"):
    read(family, **windowed, max_window_layers=1)
  kinds = ["full_attention", "sliding_attention"]
  with pytest.raises(UserError, match="use_sliding_window true for 1 of 2"):
    read(family, **windowed, layer_types=kinds)
  assert read(family, **windowed, layer_types=kinds[1:] * 2).sliding_window == 5


@pytest.mark.parametrize(
  "family, changes, message",
  [
    ("llama", {"architectures": ["GPT2LMHeadModel"]},
     "'GPT2LMHeadModel' is not supported; those that are: LlamaForCausalLM, "
     "MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM"),
    ("llama", {"architectures": ["Qwen3MoeForCausalLM"]}, "'Qwen3MoeFor"),
    ("llama", {"architectures": []}, r"\[\] is not supported"),
    ("llama", {"architectures": None}, "None is not supported"),
    ("llama", {"attention_bias": True}, "attention_bias True"),
    ("llama", {"mlp_bias": True}, "mlp_bias True"),
    ("qwen3", {"attention_bias": True}, "attention_bias True"),
    ("llama", {"hidden_act": "gelu"}, "hidden_act 'gelu'"),
    ("llama", {"quantization_config": {"bits": 4}}, "quantization_config"),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
    ("llama", {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
     "rope_scaling 'dynamic'"),
    ("llama", {"rope_parameters": {"rope_type": "yarn"}},
     "rope_scaling 'yarn'"),
    ("llama", {"rope_scaling": {"type": "linear"}}, "has no field factor"),
    ("llama", {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
     "has no field low_freq_factor"),
    ("llama", {"rope_scaling": 2.0}, "rope_scaling 2.0 is no object"),
    ("llama", {"hidden_size": None}, "has no field hidden_size"),
    ("llama", {"vocab_size": "48"}, "vocab_size '48' is not a whole number"),
    ("llama", {"rms_norm_eps": True}, "rms_norm_eps True is not a number"),
    ("llama", {"tie_word_embeddings": 1}, "1 is not true or false"),
    ("llama", {"num_key_value_heads": 3}, "model.n_kv_heads: 3 does not"),
    ("llama", {"head_dim": 7}, "model.d_head: 7 must be even"),
    ("llama", {"num_attention_heads": 0}, "model.d_head|n_attention_heads"),
  ],
)  # fmt: skip
def test_what_is_not_supported_is_named(family, changes, message):
  with pytest.raises(UserError, match=message) as failure:
    read(family, **changes)
  line = str(failure.value)
  assert line.startswith("config.json: ") and "\n" not in line
