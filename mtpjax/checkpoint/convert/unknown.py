"""Fields that a reader of configurations does not know.

Published files hold hundreds of fields that say nothing about the function a
model computes, and new ones every month. Those whose names speak of a part of
the function are refused unless their value switches it off; others that say
anything are named in a warning.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any

from mtpjax import config as config_lib
from mtpjax.errors import UserError

# Of training, of generation, and of the program that wrote the file.
HARMLESS = frozenset("""
_name_or_path name_or_path model_name base_model_name_or_path
transformers_version _commit_hash architectures model_type torch_dtype dtype
tokenizer_class prefix is_decoder is_llama_config use_cache use_bfloat16
torchscript return_dict output_hidden_states output_attentions
output_router_logits router_aux_loss_coef router_jitter_noise
initializer_range initializer_factor chunk_size_feed_forward pretraining_tp
attention_dropout hidden_dropout attn_dropout resid_dropout embd_dropout
embedding_dropout residual_dropout dropout classifier_dropout
gradient_checkpointing
bos_token_id eos_token_id pad_token_id unk_token_id sep_token_id
decoder_start_token_id forced_bos_token_id forced_eos_token_id
id2label label2id num_labels finetuning_task problem_type task_specific_params
max_length min_length max_new_tokens min_new_tokens do_sample early_stopping
num_beams num_beam_groups diversity_penalty temperature top_k top_p min_p
typical_p repetition_penalty length_penalty no_repeat_ngram_size
encoder_no_repeat_ngram_size bad_words_ids num_return_sequences output_scores
return_dict_in_generate remove_invalid_values suppress_tokens
begin_suppress_tokens exponential_decay_length_penalty tf_legacy_loss
max_sequence_length tokenizer_model_max_length tokenizer_padding_side
_attn_implementation _attn_implementation_autoset attn_implementation
_flash_attn_2_enabled use_flash_attn use_flash_attention_2
_experts_implementation
unsloth_version unsloth_fixed transformers.js_config
decoder_sparse_step norm_topk_prob original_max_position_embeddings
""".split())  # fmt: skip

# Parts of a function; switched off by null, false, 0 and nothing at all.
_PARTS = re.compile(
  r"rope|rotary|position|window|layer_type|chunk|sink|attention|attn|alibi|"
  r"expert|moe|router|norm|bias|softcap|soft_cap|logit|clip|clamp|lora|adapter|"
  r"peft|quant|compress|sparse|prun|ssm|mamba|conv|recurren|memory|share|"
  r"sharing|tie|skip|residual|parallel|cross|encoder|vision|audio|image|video|"
  r"text_config|act$|activation|_dim$|_size$|_rank$|_eps|epsilon|nextn|mup|"
  r"block_config|temperature_tuning|_heads$|_layers$"
)
# Factors; switched off by 1, too, and not by 0.
_FACTORS = re.compile(r"multipl|scal|ratio|factor|_pct|percent")


def check_unknown(
  values: Mapping[str, Any], known: Collection[str], source: str
) -> tuple[str, ...]:
  """Refuses fields that may change the model, and names other unknown ones.

  Args:
    values: the fields.
    known: names that the caller reads.
    source: the file, for errors.

  Returns:
    A line that names fields which were not read, if there are any.

  Raises:
    UserError: a field speaks of a part of the function that is not known here,
      and is not switched off.
  """
  unread = []
  for name, value in values.items():
    if name in known or name in HARMLESS:
      continue
    is_off = _is_off(name, value)
    if is_off is None:
      unread.append(name)
    elif not is_off:
      raise UserError(
        f"{source}: {name} {config_lib.shown(value)} is not supported: it may "
        "change what the model computes; remove it if it does not"
      )
  if not unread:
    return ()
  return (
    f"{source}: fields that are not known here were not read: "
    f"{', '.join(unread)}",
  )


def _is_off(name: str, value: Any) -> bool | None:
  """Returns whether a part is switched off; None if the name is of none."""
  if value is None or value is False or value in ("", [], {}):
    return True
  if isinstance(value, Mapping) and value.keys() <= HARMLESS:
    return True  # as a text_config that says what ends a text
  if _FACTORS.search(name):
    # A factor of 1 on scores replaces 1 / sqrt(d_head).
    is_of_scores = "attn" in name or "attention" in name
    return value == 1 and value is not True and not is_of_scores
  if _PARTS.search(name):
    return value in (0, "none")
  return None
