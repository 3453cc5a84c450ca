"""What lies beside a `tokenizer.json`, as Hugging Face publishes it."""

import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from mtpjax.data.document import decode_utf8
from mtpjax.errors import UserError

CONFIG = "tokenizer_config.json"
TOKENS = "special_tokens_map.json"
GENERATION = "generation_config.json"
MODEL = "config.json"
TEMPLATE = "chat_template.jinja"


@dataclasses.dataclass(frozen=True)
class Companions:
  """What the files beside a tokenizer.json say; each may be missing.

  Attributes:
    files: their bytes, by name.
    bos_tokens: the BOS token; empty if there is said to be none, None if
      nothing is said.
    eos_tokens: the EOS tokens, the one that is written first; empty if nothing
      is said.
    eos_ids: further ids that end a text.
    model_eos_ids: those that only the model's config.json names. They are of
      its vocabulary, and may be beyond the tokenizer's.
    adds_bos: does a text begin with BOS? None if nothing is said.
    chat_template: Jinja source; None without.
    template_file: the name of the file it is from.
  """

  files: Mapping[str, bytes] = dataclasses.field(default_factory=dict)
  bos_tokens: tuple[str, ...] | None = None
  eos_tokens: tuple[str, ...] = ()
  eos_ids: tuple[int, ...] = ()
  model_eos_ids: tuple[int, ...] = ()
  adds_bos: bool | None = None
  chat_template: str | None = None
  template_file: str = TEMPLATE


def read_companions(folder: pathlib.Path) -> Companions:
  """Reads what lies beside a tokenizer.json.

  Args:
    folder: may hold `tokenizer_config.json`, `special_tokens_map.json`,
      `generation_config.json`, `chat_template.jinja` and the `config.json` of
      a model (that of a run is not looked at); nor is anything else in it.

  Returns:
    What they say.

  Raises:
    UserError: a file is damaged, or a value in it is of another type.
  """
  files = {
    name: (folder / name).read_bytes()
    for name in (CONFIG, TOKENS, GENERATION, TEMPLATE)
    if (folder / name).is_file()
  }
  config = _object(files, folder, CONFIG)
  tokens = _object(files, folder, TOKENS)
  generation = _object(files, folder, GENERATION)
  where = folder / CONFIG
  bos_tokens = _token(config, "bos_token", where)
  eos_tokens = _token(config, "eos_token", where)
  says_bos = "bos_token" in config
  if not says_bos and "bos_token" in tokens:
    says_bos, bos_tokens = True, _token(tokens, "bos_token", folder / TOKENS)
  eos_tokens += _token(tokens, "eos_token", folder / TOKENS)
  if not {"bos_token", "eos_token"} & set(tokens):
    files.pop(TOKENS, None)
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
    bos_tokens if says_bos else None,
    tuple(dict.fromkeys(eos_tokens)),
    _ids(generation.get("eos_token_id"), folder / GENERATION),
    _model_ids(folder),
    adds_bos,
    template,
    TEMPLATE if TEMPLATE in files else CONFIG,
  )


def with_ends(raw: bytes | None, ids: Sequence[int]) -> bytes:
  """Returns a generation_config.json in which further ids end a text.

  Args:
    raw: the file, as `read_companions` takes it; None where there is none.
    ids: to be named besides those it names.
  """
  values = {} if raw is None else json.loads(decode_utf8(raw, GENERATION))
  named = values.get("eos_token_id")
  there = named if isinstance(named, list) else [named]
  all_ids = dict.fromkeys(i for i in (*there, *ids) if i is not None)
  values["eos_token_id"] = list(all_ids)
  return (json.dumps(values, indent=2) + "\n").encode()


def _model_ids(folder: pathlib.Path) -> tuple[int, ...]:
  """Returns the EOS ids of a model's config.json; none if it is none."""
  file = folder / MODEL
  try:
    values = json.loads(decode_utf8(file.read_bytes(), str(file)))
  except (OSError, ValueError, RecursionError):
    return ()  # whatever it is, it is no file of the tokenizer's
  if not isinstance(values, dict) or not {"model_type", "architectures"} & set(
    values
  ):
    return ()
  ids = _ids(values.get("eos_token_id"), file)
  nested = values.get("text_config")
  if isinstance(nested, dict):
    ids += _ids(nested.get("eos_token_id"), file)
  return tuple(dict.fromkeys(ids))


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
  except UserError:
    raise
  except ValueError as error:  # Python's limit of digits
    raise UserError(f"{where}: has a number out of all measure") from error
  if not isinstance(found, dict):
    raise UserError(
      f"{where}: {type(found).__name__} instead of a JSON object; copy it anew"
    )
  return found


def _token(
  config: Mapping[str, Any], name: str, where: pathlib.Path
) -> tuple[str, ...]:
  """Returns the token, spelled out or as an object; none if it is null."""
  value = config.get(name)
  content = value.get("content") if isinstance(value, dict) else value
  if value is None:
    return ()
  if not isinstance(content, str):
    raise UserError(
      f"{where}: {name} {value!r} is neither a string nor an object "
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
