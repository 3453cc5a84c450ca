"""Hugging Face's config.json, and the model it describes.

A family is an entry of `FAMILIES`: what its config.json leaves out, and which
features its architecture has. All else is common to them.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from mtpjax import config as config_lib
from mtpjax.checkpoint.convert.rotary import read_rotary, write_rotary
from mtpjax.checkpoint.convert.unknown import check_unknown
from mtpjax.config.published import Fields
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


# Names that are read here, or checked; of all others see `unknown`.
_READ = frozenset(
  """
vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads
num_key_value_heads head_dim hidden_act rms_norm_eps tie_word_embeddings
max_position_embeddings rope_theta rope_scaling rope_parameters
partial_rotary_factor quantization_config sliding_window use_sliding_window
max_window_layers layer_types
""".split()
)
_DTYPES = ("float16", "bfloat16", "float32", "float64", "auto")
_WINDOWED, _FULL = "sliding_attention", "full_attention"


def read_model(values: Mapping[str, Any], source: str) -> config_lib.Model:
  """Returns the model a config.json describes.

  Args:
    values: the contents of a config.json.
    source: the file, for errors.

  Returns:
    The model; bfloat16 checkpoints stay bfloat16, others become float32.

  Raises:
    UserError: an architecture or a feature that mtpjax does not have, or a
      field is missing, makes no sense, or may change the model in a way that
      is not known here.
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
  stated = Fields(values, source)
  fields = Fields(family.defaults | dict(values), source)
  if stated.get("model_type") not in (None, family.model_type):
    raise stated.error(
      "model_type", f"is not that of {architecture(values, source)}"
    )
  if fields.text("hidden_act") not in ("silu", "swish"):
    raise fields.error("hidden_act", "is not supported; must be 'silu'")
  d_model = fields.integer("hidden_size")
  n_heads = fields.integer("num_attention_heads")
  n_layers = fields.integer("num_hidden_layers")
  if fields.get("head_dim") is None and d_model % n_heads:
    raise fields.error(
      "num_attention_heads",
      f"does not divide hidden_size {d_model}, and there is no head_dim",
    )
  d_head = fields.integer("head_dim", d_model // n_heads)
  _check_fixed(stated, d_head, n_layers)
  notes(values, source)
  dtype = _dtype(stated)
  rotary = read_rotary(stated)
  if "rope_theta" not in rotary:
    rotary["rope_theta"] = family.defaults["rope_theta"]
  try:
    return config_lib.Model(
      vocab_size=fields.integer("vocab_size"),
      d_model=d_model,
      n_layers=n_layers,
      n_attention_heads=n_heads,
      n_kv_heads=fields.integer("num_key_value_heads", n_heads),
      d_head=d_head,
      d_ff=fields.integer("intermediate_size"),
      sliding_window=_sliding_window(family, fields, n_layers),
      qkv_bias=family.qkv_bias,
      qk_norm=family.qk_norm,
      norm_eps=fields.number("rms_norm_eps"),
      tied_embeddings=fields.claim("tie_word_embeddings"),
      dtype=dtype,
      param_dtype=dtype,
      **rotary,
    )
  except UserError as error:
    if str(error).startswith(source):
      raise
    raise UserError(f"{source}: {error}") from error


def notes(values: Mapping[str, Any], source: str) -> tuple[str, ...]:
  """Returns lines about fields of a config.json that were not read.

  Raises:
    UserError: one of them may change the model.
  """
  family = FAMILIES[architecture(values, source)]
  known = {*_READ, *_FIXED, *family.absent}
  # Its biases are in the tensors, whatever this says.
  known |= {"attention_bias"} if family.qkv_bias else set()
  return check_unknown(values, known, source)


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
  fields = Fields(family.defaults | dict(values), source)
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
    "rope_scaling": write_rotary(model),
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
  """Returns the first of `FAMILIES` that has the features of a model."""
  features = model.qkv_bias, model.qk_norm
  for name, family in FAMILIES.items():
    has_window = not model.sliding_window or family.window != "never"
    if (family.qkv_bias, family.qk_norm) == features and has_window:
      return name
  raise UserError(
    f"model: none of {', '.join(FAMILIES)} has qkv_bias {model.qkv_bias}, "
    f"qk_norm {model.qk_norm} and sliding_window {model.sliding_window} at once"
  )


# Fields of other architectures' code, by the one value that is as it is here.
_FIXED: dict[str, Callable[[int, int], tuple[Any, ...]]] = {
  "hidden_activation": lambda d_head, n_layers: ("silu", "swish"),
  "activation_function": lambda d_head, n_layers: ("silu", "swish"),
  "position_embedding_type": lambda d_head, n_layers: ("rope", "rotary"),
  "use_rope": lambda d_head, n_layers: (True,),
  "rotary_dim": lambda d_head, n_layers: (d_head,),
  "v_head_dim": lambda d_head, n_layers: (d_head,),
  "query_pre_attn_scalar": lambda d_head, n_layers: (d_head,),
  "attention_multiplier": lambda d_head, n_layers: (d_head**-0.5,),
  # 1 for a layer with rotary positions.
  "no_rope_layers": lambda d_head, n_layers: ([], [1] * n_layers),
}


def _check_fixed(fields: Fields, d_head: int, n_layers: int) -> None:
  """Raises UserError for a field of `_FIXED` with another value."""
  for name, make in _FIXED.items():
    if fields.get(name) is None:
      continue
    allowed = make(d_head, n_layers)
    if fields.get(name) not in allowed:
      raise fields.error(name, f"is not supported; must be {allowed[0]!r}")


def _dtype(fields: Fields) -> str:
  name = "torch_dtype" if fields.get("dtype") is None else "dtype"
  if fields.get(name) is None:
    return "float32"
  stated = fields.text(name).removeprefix("torch.")
  if stated not in _DTYPES:
    raise fields.error(
      name, f"is not supported; those that are: {', '.join(_DTYPES)}"
    )
  return "bfloat16" if stated == "bfloat16" else "float32"


def _sliding_window(family: Family, fields: Fields, n_layers: int) -> int:
  """Returns the window of all layers; 0 where there is none."""
  kinds = fields.texts("layer_types")
  for kind in kinds or ():
    if kind not in (_WINDOWED, _FULL):
      raise fields.error(
        "layer_types", f"has {kind!r}; supported are {_FULL} and {_WINDOWED}"
      )
  if kinds is not None and len(kinds) != n_layers:
    raise fields.error(
      "layer_types", f"has {len(kinds)} entries, num_hidden_layers {n_layers}"
    )
  is_used = fields.claim("use_sliding_window", family.window == "always")
  has_window = fields.get("sliding_window") is not None
  if family.window == "never" and has_window:
    if is_used or fields.get("use_sliding_window") is None:
      raise fields.error(
        "sliding_window",
        f"is not supported: {family.model_type} models have none; remove it, "
        "or name the architecture that has one",
      )
  if family.window == "always" and has_window and not is_used:
    raise fields.error("use_sliding_window", "contradicts sliding_window")
  if not (is_used and has_window):
    if kinds and _WINDOWED in kinds:
      raise fields.error("layer_types", "names windows, but there is none")
    return 0
  window = fields.integer("sliding_window")
  if kinds is not None:
    n_windowed = kinds.count(_WINDOWED)
  elif family.window == "always":
    n_windowed = n_layers
  else:
    first = fields.integer("max_window_layers", least=0)
    n_windowed = max(n_layers - first, 0)
  if 0 < n_windowed < n_layers:
    raise UserError(
      f"{fields.source}: use_sliding_window true for {n_windowed} of "
      f"{n_layers} layers is not supported; all layers must be alike"
    )
  return window if n_windowed else 0
