"""Rotary positions as Hugging Face's config.json describes them."""

from collections.abc import Mapping
from typing import Any

from mtpjax import config as config_lib
from mtpjax.config.published import Fields
from mtpjax.errors import UserError

# What each kind takes, beside what all do.
_KINDS: dict[str, tuple[str, ...]] = {
  "default": (),
  "linear": ("factor",),
  "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
}
# `original_max_position_embeddings` says something in llama3 alone.
_OF_ALL = (
  "rope_type", "type", "rope_theta", "partial_rotary_factor",
  "original_max_position_embeddings",
)  # fmt: skip


def read_rotary(fields: Fields) -> dict[str, Any]:
  """Returns the rotary fields of the model, from any of three spellings.

  {"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 2.0}}, the
  same with "rope_type", and {"rope_parameters": {"rope_theta": 1e4,
  "rope_type": "linear", "factor": 2.0}}.

  Args:
    fields: of a config.json; `rope_theta` is what the file itself says.

  Returns:
    Fields of `config.Model`; `rope_theta` is left out where the file is silent.

  Raises:
    UserError: a kind, or a setting, that is not understood; settings by kind of
      layer; two spellings that contradict each other.
  """
  name, stated = _stated(fields)
  rope = Fields(stated, f"{fields.source}: {name}")
  kind = _kind(rope, fields.source)
  known = {*_OF_ALL, *_KINDS[kind]}
  for key, value in stated.items():
    if key not in known and value is not None:
      raise rope.error(key, f"is not understood with rope_type {kind!r}")
  for where in (rope, fields):
    if where.number("partial_rotary_factor", 1.0) != 1:
      raise where.error("partial_rotary_factor", "is not supported; must be 1")
  found: dict[str, Any] = {}
  thetas = {
    where.number("rope_theta")
    for where in (rope, fields)
    if where.get("rope_theta") is not None
  }
  if len(thetas) > 1:
    raise rope.error(
      "rope_theta",
      f"contradicts rope_theta {fields.get('rope_theta')!r} beside it; leave "
      "out the one that is wrong",
    )
  if thetas:
    found["rope_theta"] = thetas.pop()
  if kind == "default":
    return found
  found |= {"rope_scaling": kind, "rope_factor": rope.number("factor")}
  if found["rope_factor"] < 1:
    raise rope.error("factor", "must be at least 1")
  if kind == "llama3":
    length = "original_max_position_embeddings"
    outside = fields.get(length)
    found |= {
      "rope_low_freq_factor": rope.number("low_freq_factor"),
      "rope_high_freq_factor": rope.number("high_freq_factor"),
      "rope_original_length": rope.integer(
        length, None if outside is None else fields.integer(length)
      ),
    }
  return found


def write_rotary(model: config_lib.Model) -> dict[str, Any] | None:
  """Returns the `rope_scaling` of a model; None where it has none."""
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


def _stated(fields: Fields) -> tuple[str, Mapping[str, Any]]:
  """Returns the object of settings and its name; an empty one if none is."""
  found: dict[str, Mapping[str, Any]] = {}
  for name in ("rope_parameters", "rope_scaling"):
    value = fields.get(name)
    if value is None:
      continue
    if not isinstance(value, Mapping):
      raise fields.error(name, "is no object of fields")
    for key, below in value.items():
      if isinstance(below, Mapping):
        raise fields.error(
          name,
          f"has settings of its own for {key!r}, which is not supported: all "
          "layers must be alike",
        )
    if value:
      found[name] = value
  if len(found) > 1 and found["rope_parameters"] != found["rope_scaling"]:
    raise fields.error(
      "rope_scaling",
      "contradicts rope_parameters beside it; leave out the one that is wrong",
    )
  return next(iter(found.items()), ("rope_parameters", {}))


def _kind(rope: Fields, source: str) -> str:
  kinds = {name: rope.get(name) for name in ("rope_type", "type")}
  stated = {name: kind for name, kind in kinds.items() if kind is not None}
  if len(set(map(str, stated.values()))) > 1:
    raise rope.error("rope_type", f"contradicts type {stated['type']!r}")
  if not stated:
    # transformers reads an object with a base alone as plain rotation.
    if rope.get("factor") is None:
      return "default"
    raise UserError(
      f"{rope.source}: has a factor, but no rope_type; say which of "
      f"{', '.join(_KINDS)} it is"
    )
  name, kind = next(iter(stated.items()))
  if not isinstance(kind, str) or kind not in _KINDS:
    raise UserError(
      f"{source}: rope_scaling {config_lib.shown(kind)} is not supported; "
      f"those that are: {', '.join(_KINDS)}"
    )
  return kind
