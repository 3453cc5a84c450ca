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
    ("llama", {"num_attention_heads": 0}, "num_attention_heads 0 must be"),
  ],
)  # fmt: skip
def test_what_is_not_supported_is_named(family, changes, message):
  with pytest.raises(UserError, match=message) as failure:
    read(family, **changes)
  line = str(failure.value)
  assert line.startswith("config.json: ") and "\n" not in line


NESTED = {
  "full_attention": {"rope_type": "default", "rope_theta": 1e6},
  "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
NAN, INF = float("nan"), float("inf")
LLAMA3 = {
  "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
  "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
}  # fmt: skip


@pytest.mark.parametrize("family", hf_checkpoints.FAMILIES)
@pytest.mark.parametrize(
  "changes, message",
  [
    # Rotary positions by kind of layer, in every spelling.
    ({"rope_parameters": NESTED}, "own for 'full_attention'"),
    ({"rope_scaling": NESTED}, "own for 'full_attention'"),
    ({"rope_theta": None, "rope_parameters": NESTED}, "own for"),
    ({"rope_parameters": {"sliding_attention": {}}}, "'sliding_attention'"),
    ({"rope_parameters": {"rope_theta": 1e4, "local": {}}}, "own for 'local'"),
    # What a kind of scaling does not take.
    ({"rope_scaling": {"factor": 2.0}}, "a factor, but no rope_type"),
    ({"rope_scaling": {"type": "default", "factor": 2.0}}, "factor 2.0"),
    ({"rope_scaling": {"type": "mrope", "mrope_section": [1]}}, "'mrope'"),
    ({"rope_parameters": {"mrope_section": [1]}}, "mrope_section .1. is not"),
    ({"rope_scaling": LINEAR | {"type": "linear", "attention_factor": 0.5}},
     "attention_factor 0.5 is not understood with rope_type 'linear'"),
    ({"rope_scaling": LINEAR | {"type": 7}}, "rope_scaling 7 is not supp"),
    ({"rope_scaling": LINEAR | {"type": "linear", "rope_type": "yarn"}},
     "rope_type 'yarn' contradicts type 'linear'"),
    ({"rope_scaling": LINEAR | {"type": "linear"},
      "rope_parameters": {"rope_type": "default"}}, "contradicts rope_par"),
    ({"rope_theta": 5e5, "rope_parameters": {"rope_theta": 1e4}},
     "rope_theta 10000.0 contradicts rope_theta 500000.0"),
    ({"rope_scaling": {"type": "linear", "factor": "2"}}, "factor '2' is not"),
    ({"rope_scaling": {"type": "linear", "factor": 0.5}}, "at least 1"),
    ({"rope_scaling": {"type": "linear", "factor": NAN}}, "factor nan must"),
    ({"rope_scaling": LLAMA3 | {"low_freq_factor": -1.0}}, "low_freq_factor"),
    ({"rope_scaling": LLAMA3 | {"high_freq_factor": 1.0}}, "high_freq_factor"),
    ({"rope_scaling": LLAMA3 | {"original_max_position_embeddings": 0}},
     "original_max_position_embeddings 0"),
    ({"rope_parameters": {"partial_rotary_factor": 0.25}}, "factor 0.25"),
    ({"partial_rotary_factor": "1"}, "partial_rotary_factor '1'"),
    ({"rope_parameters": []}, "rope_parameters \\[\\] is no object"),
    # Numbers that are none.
    ({"rope_theta": NAN}, "rope_theta nan must be finite"),
    ({"rope_theta": INF}, "rope_theta inf must be finite"),
    ({"rope_theta": -1}, "rope_theta -1 must be"),
    ({"rope_theta": "1e4"}, "rope_theta '1e4' is not a number"),
    ({"rms_norm_eps": NAN}, "rms_norm_eps nan"),
    ({"rms_norm_eps": 0}, "rms_norm_eps 0 must"),
    ({"rms_norm_eps": None}, "rms_norm_eps .it is null"),
    ({"vocab_size": 0}, "vocab_size 0"),
    ({"vocab_size": 48.5}, "vocab_size 48.5"),
    ({"hidden_size": -24}, "hidden_size -24"),
    ({"num_hidden_layers": 0}, "num_hidden_layers 0"),
    ({"num_key_value_heads": -2}, "num_key_value_heads -2"),
    ({"intermediate_size": 10**400}, "and below 2,147,483,648"),
    ({"head_dim": 0}, "head_dim 0"),
    ({"hidden_act": None}, "hidden_act .it is null"),
    ({"model_type": "gemma2"}, "model_type 'gemma2' is not that of"),
    ({"torch_dtype": "int8"}, "torch_dtype 'int8'"),
    ({"torch_dtype": 16}, "torch_dtype 16"),
    # Layers that are not alike.
    ({"layer_types": ["full_attention"]}, "layer_types .* has 1 entries"),
    ({"layer_types": ["full_attention", "linear_attention"]}, "'linear_att"),
    ({"layer_types": "full_attention"}, "is not a list of texts"),
    ({"use_sliding_window": "false"}, "use_sliding_window 'false'"),
    # Parts that other architectures have.
    ({"final_logit_softcapping": 30.0}, "final_logit_softcapping 30.0"),
    ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
    ({"logit_scale": 0.0625}, "logit_scale 0.0625"),
    ({"logits_scaling": 8.0}, "logits_scaling"),
    ({"embedding_multiplier": 12.0}, "embedding_multiplier"),
    ({"embedding_multiplier": 0}, "embedding_multiplier 0"),
    ({"residual_multiplier": 0.22}, "residual_multiplier"),
    ({"attention_multiplier": 1.0}, "attention_multiplier 1.0"),
    ({"query_pre_attn_scalar": 256}, "query_pre_attn_scalar 256"),
    ({"no_rope_layers": [1, 0]}, "no_rope_layers"),
    ({"no_rope_layer_interval": 4}, "no_rope_layer_interval"),
    ({"num_local_experts": 8}, "num_local_experts 8"),
    ({"n_routed_experts": 64}, "n_routed_experts"),
    ({"attention_chunk_size": 8192}, "attention_chunk_size"),
    ({"mlp_bias": True}, "mlp_bias True"),
    ({"clip_qkv": 8.0}, "clip_qkv"),
    ({"position_embedding_type": "alibi"}, "'alibi'"),
    ({"rope_interleaved": True}, "rope_interleaved True"),
    ({"rope_local_base_freq": 1e4}, "rope_local_base_freq"),
    ({"rotary_pct": 0.25}, "rotary_pct"),
    ({"activation_function": "gelu"}, "activation_function 'gelu'"),
    ({"is_encoder_decoder": True}, "is_encoder_decoder"),
    ({"vision_config": {"depth": 2}}, "vision_config"),
    ({"text_config": {"eos_token_id": 1, "hidden_size": 8}}, "text_config"),
    ({"tie_encoder_decoder": True}, "tie_encoder_decoder"),
    ({"num_nextn_predict_layers": 1}, "num_nextn_predict_layers 1"),
    ({"compression_config": {"bits": 4}}, "compression_config"),
    ({"qkv_proj_layernorm": NAN}, "qkv_proj_layernorm nan"),
  ],
)  # fmt: skip
def test_what_would_change_the_function_is_refused(family, changes, message):
  with pytest.raises(UserError, match=message) as failure:
    # Its own window is not what this is about.
    read(family, **({"sliding_window": None} | changes))
  line = str(failure.value)
  assert line.startswith("config.json: ") and "\n" not in line


@pytest.mark.parametrize("family", hf_checkpoints.FAMILIES)
def test_what_is_switched_off_changes_nothing(family):
  plain = read(family)
  off = {
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
    "partial_rotary_factor": 1.0, "quantization_config": None,
    "final_logit_softcapping": None, "logit_scale": 1.0, "embedding_scale": 1,
    "query_pre_attn_scalar": 8, "attention_multiplier": 8**-0.5,
    "v_head_dim": 8, "no_rope_layers": [1, 1], "num_local_experts": 0,
    "mlp_bias": False, "use_mrope": False, "rope_interleaved": False,
    "pretraining_tp": 2, "attention_dropout": 0.1, "is_decoder": True,
    "pruned_heads": {}, "hidden_act": "swish", "use_qk_norm": False,
    "text_config": {"eos_token_id": [1, 2], "torch_dtype": "float32"},
    "position_embedding_type": "rope", "is_encoder_decoder": False,
  }  # fmt: skip
  assert read(family, **off) == plain
  values = hf_checkpoints.config_values(family, **off)
  assert families.notes(values, "config.json") == ()


def test_a_window_is_where_the_family_has_one():
  with pytest.raises(UserError, match="sliding_window 5 is not supported"):
    read("llama", sliding_window=5)
  unused = {"sliding_window": 0, "use_sliding_window": False}
  assert read("qwen2", **unused).sliding_window == 0
  for window in (0, -1, "5", 2.5, True):
    with pytest.raises(UserError, match="sliding_window"):
      read("mistral", sliding_window=window)
  windowed = ["sliding_attention"] * 2
  assert read("mistral", layer_types=windowed).sliding_window == 5
  for family in ("llama", "qwen2", "qwen3"):
    with pytest.raises(UserError, match="layer_types .* there is none"):
      read(family, layer_types=windowed)
  with pytest.raises(UserError, match="use_sliding_window False contradicts"):
    read("mistral", use_sliding_window=False)


def test_the_original_length_may_stand_beside_the_settings():
  inside = {k: v for k, v in LLAMA3.items() if not k.startswith("original")}
  beside = {"original_max_position_embeddings": 8192}
  assert read(rope_parameters=inside, **beside) == read(rope_parameters=LLAMA3)


def test_other_unknown_fields_are_named_in_a_note():
  values = hf_checkpoints.config_values("llama", brew="tea", auto_map={"a": 1})
  [note] = families.notes(values, "config.json")
  assert note.startswith("config.json: ") and note.endswith(": brew, auto_map")
