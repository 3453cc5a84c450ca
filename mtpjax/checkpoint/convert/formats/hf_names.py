"""Names of tensors in the folders of Hugging Face."""

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
LAYER_NAMES = {
  path.removeprefix("layers/"): name
  for path, name in HF_NAMES.items()
  if path.startswith("layers/")
}
