"""What lies beside a `tokenizer.json`, as Hugging Face publishes it."""

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any

from mtpjax.data.document import decode_utf8
from mtpjax.errors import UserError

CONFIG = "tokenizer_config.json"
GENERATION = "generation_config.json"
TEMPLATE = "chat_template.jinja"


@dataclasses.dataclass(frozen=True)
class Companions:
  """What the files beside a tokenizer.json say; each may be missing.

  Attributes:
    files: their bytes, by name.
    bos_tokens: the BOS token; empty if there is said to be none, None if
      nothing is said.
    eos_tokens: the EOS token that is written; empty if nothing is said.
    eos_ids: further ids that end a text.
    adds_bos: does a text begin with BOS? None if nothing is said.
    chat_template: Jinja source; None without.
    template_file: the name of the file it is from.
  """

  files: Mapping[str, bytes] = dataclasses.field(default_factory=dict)
  bos_tokens: tuple[str, ...] | None = None
  eos_tokens: tuple[str, ...] = ()
  eos_ids: tuple[int, ...] = ()
  adds_bos: bool | None = None
  chat_template: str | None = None
  template_file: str = TEMPLATE


def read_companions(folder: pathlib.Path) -> Companions:
  """Reads what lies beside a tokenizer.json.

  Args:
    folder: may hold `tokenizer_config.json`, `generation_config.json` and
      `chat_template.jinja`; nothing else in it is looked at.

  Returns:
    What they say.

  Raises:
    UserError: a file is damaged, or a value in it is of another type.
  """
  files = {
    name: (folder / name).read_bytes()
    for name in (CONFIG, GENERATION, TEMPLATE)
    if (folder / name).is_file()
  }
  config = _object(files, folder, CONFIG)
  generation = _object(files, folder, GENERATION)
  bos_tokens = _token(config, "bos_token", folder)
  where = folder / CONFIG
  adds_bos = config.get("add_bos_token")
  if adds_bos is not None and not isinstance(adds_bos, bool):
    raise UserError(
      f"{where}: add_bos_token {adds_bos!r} is neither true nor false"
    )
  template: str | None
  if TEMPLATE in files:
    template = decode_utf8(files[TEMPLATE], str(folder / TEMPLATE))
  else:
    template = _template(config.get("chat_template"), where)
  return Companions(
    files,
    bos_tokens if "bos_token" in config else None,
    _token(config, "eos_token", folder),
    _ids(generation.get("eos_token_id"), folder / GENERATION),
    adds_bos,
    template,
    TEMPLATE if TEMPLATE in files else CONFIG,
  )


def _object(
  files: Mapping[str, bytes], folder: pathlib.Path, name: str
) -> dict[str, Any]:
  if name not in files:
    return {}
  where = folder / name
  try:
    found = json.loads(decode_utf8(files[name], str(where)))
  except json.JSONDecodeError as error:
    raise UserError(f"{where}: not valid JSON ({error}); copy it anew") from (
      error
    )
  except RecursionError as error:
    raise UserError(f"{where}: nested out of all measure") from error
  if not isinstance(found, dict):
    raise UserError(
      f"{where}: {type(found).__name__} instead of a JSON object; copy it anew"
    )
  return found


def _token(
  config: Mapping[str, Any], name: str, folder: pathlib.Path
) -> tuple[str, ...]:
  """Returns the token, spelled out or as an object; none if it is null."""
  value = config.get(name)
  content = value.get("content") if isinstance(value, dict) else value
  if value is None:
    return ()
  if not isinstance(content, str):
    raise UserError(
      f"{folder / CONFIG}: {name} {value!r} is neither a string nor an object "
      'with "content"'
    )
  return (content,)


def _ids(value: Any, where: pathlib.Path) -> tuple[int, ...]:
  ids = value if isinstance(value, list) else [value]
  if value is None:
    return ()
  if not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
    raise UserError(
      f"{where}: eos_token_id {value!r} is neither an integer nor a list of "
      "integers"
    )
  return tuple(ids)


def _template(value: Any, where: pathlib.Path) -> str | None:
  """Returns the only template, or of several the one named "default"."""
  if value is None or isinstance(value, str):
    return value
  if isinstance(value, list) and all(isinstance(v, dict) for v in value):
    named = {v.get("name"): v.get("template") for v in value}
    template = named.get("default")
    if template is None or isinstance(template, str):
      return template
  raise UserError(
    f"{where}: chat_template is neither a string nor a list of objects with "
    '"name" and "template"'
  )
