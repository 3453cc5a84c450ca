"""Hugging Face's config.json, and the model it describes.

A family is an entry of `FAMILIES`: what its config.json leaves out, and which
features its architecture has. All else is common to them.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from mtpjax import config as config_lib
from mtpjax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Family:
  """One published architecture.

  Attributes:
    model_type: its name in config.json.
    defaults: values of fields that a config.json may leave out.
    qkv_bias: query, key and value have biases.
    qk_norm: heads of queries and keys are normalised.
    window: which layers look back on a sliding window: "never", "always"
      (where one is given), or "by layer" (`use_sliding_window`, from the layer
      `max_window_layers` on).
    absent: features of its code that are not in mtpjax: fields that must be
      false, or left out.
  """

  model_type: str
  defaults: dict[str, Any]
  qkv_bias: bool = False
  qk_norm: bool = False
  window: str = "never"
  absent: tuple[str, ...] = ()


_DEFAULTS: dict[str, Any] = {
  "rms_norm_eps": 1e-6,
  "rope_theta": 10_000.0,
  "tie_word_embeddings": False,
  "hidden_act": "silu",
  "max_position_embeddings": 32_768,
}

FAMILIES: dict[str, Family] = {
  "LlamaForCausalLM": Family(
    "llama",
    _DEFAULTS | {"max_position_embeddings": 2048},
    absent=("attention_bias", "mlp_bias"),
  ),
  "MistralForCausalLM": Family(
    "mistral",
    _DEFAULTS
    | {
      "num_key_value_heads": 8,
      "sliding_window": 4096,
      "max_position_embeddings": 131_072,
    },
    window="always",
  ),
  "Qwen2ForCausalLM": Family(
    "qwen2",
    _DEFAULTS
    | {
      "num_key_value_heads": 32,
      "sliding_window": 4096,
      "max_window_layers": 28,
    },
    qkv_bias=True,
    window="by layer",
  ),
  "Qwen3ForCausalLM": Family(
    "qwen3",
    _DEFAULTS
    | {
      "num_key_value_heads": 32,
      "head_dim": 128,
      "sliding_window": 4096,
      "max_window_layers": 28,
    },
    qk_norm=True,
    window="by layer",
    absent=("attention_bias",),
  ),
}


def read_model(values: Mapping[str, Any], source: str) -> config_lib.Model:
  """Returns the model a config.json describes.

  Args:
    values: the contents of a config.json.
    source: the file, for errors.

  Returns:
    The model; bfloat16 checkpoints stay bfloat16, others become float32.

  Raises:
    UserError: an architecture or a feature that mtpjax does not have, or a
      field is missing or makes no sense.
  """
  family = FAMILIES[architecture(values, source)]
  for name in family.absent:
    if values.get(name):
      raise UserError(
        f"{source}: {name} {values[name]!r} is not supported; mtpjax has no "
        f"such bias in a {family.model_type} model"
      )
  if values.get("quantization_config"):
    raise UserError(
      f"{source}: quantization_config: quantised weights are not supported; "
      "take the unquantised checkpoint"
    )
  fields = _Fields(family.defaults | dict(values), source)
  if fields.text("hidden_act") != "silu":
    raise UserError(
      f"{source}: hidden_act {fields.text('hidden_act')!r} is not supported; "
      "must be 'silu'"
    )
  d_model = fields.integer("hidden_size")
  n_heads = fields.integer("num_attention_heads")
  n_layers = fields.integer("num_hidden_layers")
  dtype = _dtype(values)
  try:
    return config_lib.Model(
      vocab_size=fields.integer("vocab_size"),
      d_model=d_model,
      n_layers=n_layers,
      n_attention_heads=n_heads,
      n_kv_heads=fields.integer("num_key_value_heads", n_heads),
      d_head=fields.integer("head_dim", d_model // max(n_heads, 1)),
      d_ff=fields.integer("intermediate_size"),
      sliding_window=_sliding_window(family, fields, n_layers),
      qkv_bias=family.qkv_bias,
      qk_norm=family.qk_norm,
      norm_eps=fields.number("rms_norm_eps"),
      tied_embeddings=fields.claim("tie_word_embeddings"),
      dtype=dtype,
      param_dtype=dtype,
      **_rope(fields),
    )
  except UserError as error:
    if str(error).startswith(source):
      raise
    raise UserError(f"{source}: {error}") from error


def architecture(values: Mapping[str, Any], source: str) -> str:
  """Returns the architecture a config.json names, one of `FAMILIES`.

  Raises:
    UserError: it is none of them.
  """
  named = values.get("architectures")
  name = named[0] if isinstance(named, list) and named else named
  if not isinstance(name, str) or name not in FAMILIES:
    raise UserError(
      f"{source}: architecture {name!r} is not supported; those that are: "
      f"{', '.join(FAMILIES)}"
    )
  return name


def max_length(values: Mapping[str, Any], source: str) -> int:
  """Returns the positions a model of this config.json was made for."""
  family = FAMILIES[architecture(values, source)]
  fields = _Fields(family.defaults | dict(values), source)
  return fields.integer("max_position_embeddings")


def write_values(
  model: config_lib.Model, n_layers: int, dtype: str, length: int
) -> dict[str, Any]:
  """Returns the config.json of a model, of the family that has its features.

  Args:
    model: the architecture.
    n_layers: layers of the next-token model.
    dtype: that the parameters are stored in.
    length: positions the model was made for.

  Returns:
    The values, without the ids of BOS and EOS.

  Raises:
    UserError: no family has this combination of features.
  """
  if model.qk_norm and model.qkv_bias:
    raise UserError(
      "model.qk_norm: with model.qkv_bias it is of no published architecture, "
      "and cannot be exported"
    )
  name = _architecture_of(model)
  family = FAMILIES[name]
  values = {
    "architectures": [name],
    "model_type": family.model_type,
    "vocab_size": model.vocab_size,
    "hidden_size": model.d_model,
    "intermediate_size": model.d_ff,
    "num_hidden_layers": n_layers,
    "num_attention_heads": model.n_attention_heads,
    "num_key_value_heads": model.n_kv_heads,
    "head_dim": model.d_head,
    "hidden_act": "silu",
    "max_position_embeddings": length,
    "rms_norm_eps": model.norm_eps,
    "tie_word_embeddings": model.tied_embeddings,
    "rope_theta": model.rope_theta,
    "rope_scaling": _rope_scaling_values(model),
    "torch_dtype": dtype,
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
    "use_cache": True,
  }
  values |= dict.fromkeys(family.absent, False)
  if family.window == "always":
    values["sliding_window"] = model.sliding_window or None
  if family.window == "by layer":
    values |= {
      "use_sliding_window": model.sliding_window > 0,
      "sliding_window": model.sliding_window or None,
      "max_window_layers": 0 if model.sliding_window else n_layers,
    }
  return values


def _architecture_of(model: config_lib.Model) -> str:
  """Returns the architecture that has the features of a model."""
  if model.qk_norm:
    return "Qwen3ForCausalLM"
  if model.qkv_bias:
    return "Qwen2ForCausalLM"
  return "MistralForCausalLM" if model.sliding_window else "LlamaForCausalLM"


class _Fields:
  """Reads fields of a config.json, each with an error that names it."""

  def __init__(self, values: Mapping[str, Any], source: str):
    self._values = values
    self.source = source

  def get(self, name: str) -> Any:
    """Returns the value as it is; None where there is none."""
    return self._values.get(name)

  def integer(self, name: str, default: int | None = None) -> int:
    """Returns a whole number; null and a missing field give the default."""
    value = self._of_kind(name, int, "a whole number", default)
    return int(value)

  def number(self, name: str) -> float:
    """Returns a number."""
    return float(self._of_kind(name, (int, float), "a number"))

  def text(self, name: str) -> str:
    """Returns a text."""
    return self._of_kind(name, str, "a text")

  def claim(self, name: str) -> bool:
    """Returns true or false."""
    return self._of_kind(name, bool, "true or false")

  def _of_kind(
    self, name: str, kind: Any, called: str, default: Any = None
  ) -> Any:
    value = self._values.get(name)
    value = default if value is None else value
    if value is None:
      raise UserError(
        f"{self.source}: has no field {name}; it must be {called}"
      )
    if not isinstance(value, kind) or (
      isinstance(value, bool) and kind is not bool
    ):
      raise UserError(f"{self.source}: {name} {value!r} is not {called}")
    return value


def _dtype(values: Mapping[str, Any]) -> str:
  named = values.get("dtype") or values.get("torch_dtype") or "float32"
  return "bfloat16" if named == "bfloat16" else "float32"


def _sliding_window(family: Family, fields: _Fields, n_layers: int) -> int:
  """Returns the window of all layers; 0 where there is none."""
  if family.window == "never" or fields.get("sliding_window") is None:
    return 0
  if family.window == "by layer" and not fields.get("use_sliding_window"):
    return 0
  window = fields.integer("sliding_window")
  if family.window == "always":
    return window
  kinds = fields.get("layer_types")
  if kinds is None:
    first = fields.integer("max_window_layers")
    n_windowed = min(max(n_layers - first, 0), n_layers)
  else:
    n_windowed = sum(kind == "sliding_attention" for kind in kinds)
  if 0 < n_windowed < n_layers:
    raise UserError(
      f"{fields.source}: use_sliding_window true for {n_windowed} of "
      f"{n_layers} layers is not supported; all layers must be alike"
    )
  return window if n_windowed else 0


def _rope(fields: _Fields) -> dict[str, Any]:
  """Returns the rotary fields of the model, from any of three spellings.

  {"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 2.0}}, the
  same with "rope_type", and {"rope_parameters": {"rope_theta": 1e4,
  "rope_type": "linear", "factor": 2.0}}.
  """
  for name in ("rope_parameters", "rope_scaling"):
    if not isinstance(fields.get(name), Mapping | None):
      raise UserError(
        f"{fields.source}: {name} {fields.get(name)!r} is no object of fields"
      )
  newest = fields.get("rope_parameters")
  stated = (fields.get("rope_scaling") if newest is None else newest) or {}
  theta = {"rope_theta": fields.get("rope_theta")}
  rope = _Fields(theta | dict(stated), f"{fields.source}: rotary positions")
  partial = rope.get("partial_rotary_factor")
  if partial is None:
    partial = fields.get("partial_rotary_factor")
  if partial not in (None, 1, 1.0):
    raise UserError(
      f"{fields.source}: partial_rotary_factor {partial!r} is not supported; "
      "must be 1"
    )
  found: dict[str, Any] = {"rope_theta": rope.number("rope_theta")}
  kind = rope.get("rope_type") or rope.get("type") or "default"
  if kind == "default":
    return found
  if kind not in ("linear", "llama3"):
    raise UserError(
      f"{fields.source}: rope_scaling {kind!r} is not supported; those that "
      "are: default, linear, llama3"
    )
  found |= {"rope_scaling": kind, "rope_factor": rope.number("factor")}
  if kind == "llama3":
    found |= {
      "rope_low_freq_factor": rope.number("low_freq_factor"),
      "rope_high_freq_factor": rope.number("high_freq_factor"),
      "rope_original_length": rope.integer("original_max_position_embeddings"),
    }
  return found


def _rope_scaling_values(model: config_lib.Model) -> dict[str, Any] | None:
  if model.rope_scaling == "none":
    return None
  values = {"rope_type": model.rope_scaling, "factor": model.rope_factor}
  if model.rope_scaling == "llama3":
    values |= {
      "low_freq_factor": model.rope_low_freq_factor,
      "high_freq_factor": model.rope_high_freq_factor,
      "original_max_position_embeddings": model.rope_original_length,
    }
  return values
