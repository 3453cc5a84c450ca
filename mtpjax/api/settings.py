"""Settings of a call, over those of an experiment."""

import json
from collections.abc import Mapping
from typing import Any

from mtpjax import config as config_lib
from mtpjax import decode
from mtpjax.errors import UserError

_TEXTS = frozenset(
  path.removeprefix("decode.")
  for path, field in config_lib.fields()
  if path.startswith("decode.") and config_lib.is_texts(field.type)
)


def override_settings(
  config: config_lib.Config, own: Mapping[str, Any]
) -> config_lib.Config:
  """Returns the configuration with fields of `decode` replaced.

  Args:
    config: the configuration to start from.
    own: values by name. Of a field of several texts a string is one of them,
      exactly as it is. Values of other fields may be written as on the command
      line.

  Returns:
    The configuration. With another mode the tree and the length of drafts go,
    unless they are given too: they belong to the mode that was.

  Raises:
    UserError: a name that does not exist, or a value of the wrong type.
  """
  values = {name.replace("-", "_"): value for name, value in own.items()}
  for name in _TEXTS & set(values):
    values[name] = _texts(name, values[name])
  if isinstance(values.get("json_schema"), Mapping | bool):
    values["json_schema"] = _dumped(values["json_schema"])
  before = config.decode.mode
  if values.get("mode", before) != before:
    values = {"tree": "", "draft_length": 0} | values
  config = config_lib.override(
    config, {f"decode.{name}": value for name, value in values.items()}
  )
  decode.mode_of(config.decode)
  decode.verifiers.of(config.decode)
  return config


def _texts(name: str, value: Any) -> tuple[str, ...]:
  texts = [value] if isinstance(value, str) else value
  if not isinstance(texts, list | tuple) or not all(
    isinstance(text, str) for text in texts
  ):
    raise UserError(
      f"decode.{name}: {config_lib.shown(value)} is neither a string nor a "
      "list of strings"
    )
  return tuple(texts)


def _dumped(schema: Mapping[str, Any] | bool) -> str:
  try:
    return json.dumps(schema)
  except (TypeError, ValueError, RecursionError) as error:
    raise UserError(
      f"decode.json_schema: {config_lib.shown(schema)} cannot be written as "
      f"JSON ({error})"
    ) from error
