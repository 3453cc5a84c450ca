"""What a caller may ask for."""

import dataclasses
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mtpjax import config as config_lib
from mtpjax.api.settings import override_settings
from mtpjax.data import (
  TEMPLATE_FIELDS,
  Message,
  TemplateFields,
  read_messages,
  read_template_fields,
  require_unicode,
)
from mtpjax.errors import UserError

Prompt = str | Sequence[int] | Mapping[str, Any]

PER_REQUEST = frozenset(
  path.removeprefix("decode.")
  for path, field in config_lib.fields()
  if field.metadata["per_request"]
)


@dataclasses.dataclass(frozen=True)
class Asked:
  """One prompt with the settings that hold for it.

  Attributes:
    content: a text, ids, or the messages of a conversation.
    settings: those of the call, with the prompt's own in their place.
    kind: class of the prompt; acceptance is tracked per class.
    has_own_seed: its noise does not depend on its place in the call.
    template_fields: what the chat template is given besides messages.
  """

  content: str | Sequence[int] | Sequence[Message]
  settings: config_lib.Decode
  kind: str
  has_own_seed: bool
  template_fields: TemplateFields = dataclasses.field(default_factory=dict)


def list_prompts(prompts: Prompt | Iterable[Prompt]) -> list[Prompt]:
  """Returns the prompts of a call.

  Args:
    prompts: one of them, or any number, in order.

  Returns:
    A list.

  Raises:
    UserError: neither a prompt nor what could be several.
  """
  if isinstance(prompts, str | Mapping):
    return [prompts]
  if isinstance(prompts, bytes) or not isinstance(prompts, Iterable):
    raise UserError(
      f"prompts: {config_lib.shown(prompts)} is no list of prompts; give a "
      "text, or a list of texts"
    )
  found: list[Any] = list(prompts)
  # Ids alone are one prompt, too.
  return [found] if found and _is_ids(prompts) else found


@dataclasses.dataclass(frozen=True)
class Record:
  """The parts of a prompt, as they are written.

  Attributes:
    content: a text, ids, or the messages of a conversation.
    kind: its class; "" where it names none.
    settings: its own, by name; not looked into.
    template_fields: what the chat template is given besides messages.
  """

  content: str | Sequence[int] | Sequence[Message]
  kind: str = ""
  settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  template_fields: TemplateFields = dataclasses.field(default_factory=dict)


def read_record(prompt: Any, where: str) -> Record:
  """Reads what a prompt may be, whether from a file, a call, or a command.

  Args:
    prompt: a text; ids; or a mapping with "text", "ids" or "messages" (see
      `data.read_messages`; beside them what `data.read_template_fields` reads,
      as "tools"), and optionally "class" and settings.
    where: names the prompt in errors.

  Returns:
    The record.

  Raises:
    UserError: neither text nor ids nor messages, several of them, or text that
      is not Unicode.
  """
  if isinstance(prompt, str):
    return Record(require_unicode(prompt, where))
  if not isinstance(prompt, Mapping):
    if not _is_ids(prompt):
      raise UserError(
        f"{where}: {config_lib.shown(prompt)} is neither a text nor a list of "
        "ids; a prompt of ids is a list of its own, as [[1, 2], [3]]"
      )
    return Record(prompt)
  own = dict(prompt)
  text, ids, messages, kind = (
    own.pop(key, None) for key in ("text", "ids", "messages", "class")
  )
  n_given = sum(given is not None for given in (text, ids, messages))
  is_one = isinstance(text, str) or _is_ids(ids) or messages is not None
  if n_given != 1 or not is_one or (kind and not isinstance(kind, str)):
    raise UserError(
      f'{where}: needs "text" (a string), "ids" (a list of integers) or '
      '"messages" (of a chat), not both; its "class" is a string'
    )
  kind = kind or ""
  if messages is None:
    content = ids
    if isinstance(text, str):
      content = require_unicode(text, where)
    return Record(content, kind, own)
  fields = read_template_fields(own, where)
  own = {k: v for k, v in own.items() if k not in TEMPLATE_FIELDS}
  return Record(read_messages(messages, where), kind, own, fields)


def read_prompt(prompt: Prompt, config: config_lib.Config, where: str) -> Asked:
  """Reads a prompt and the settings that hold for it.

  Args:
    prompt: see `read_record`.
    config: the settings of the call.
    where: names the prompt in errors.

  Returns:
    What is asked.

  Raises:
    UserError: see `read_record`; or a setting that is unknown, not a request's
      own, or out of range.
  """
  record = read_record(prompt, where)
  for name in record.settings:
    if name not in PER_REQUEST:
      close = config_lib.nearest(str(name), sorted(PER_REQUEST))
      shown = config_lib.shown(name)
      raise UserError(f"{where}: {shown} is no setting of a prompt{close}")
  settings = config.decode
  if record.settings:
    try:
      settings = override_settings(config, record.settings).decode
    except UserError as error:
      raise UserError(f"{where}: {error}") from error
  _require_unicode(settings, where)
  return Asked(
    record.content,
    settings,
    record.kind or ("sampled" if settings.temperature > 0 else "greedy"),
    "seed" in record.settings,
    record.template_fields,
  )


def _is_ids(value: Any) -> bool:
  """Returns whether the value is a sequence, or an array, of integers."""
  is_array = hasattr(value, "__array__")
  if isinstance(value, str | bytes) or not (
    is_array or isinstance(value, Sequence)
  ):
    return False
  try:
    # To Python true is an integer too.
    return all(
      operator.index(i) is not None and not isinstance(i, bool) for i in value
    )
  except TypeError:
    return False


def _require_unicode(settings: config_lib.Decode, where: str) -> None:
  """Raises UserError if UTF-8 can't hold the texts of settings."""
  texts = [(name, getattr(settings, name)) for name in ("regex", "json_schema")]
  for name in ("stop", "bad_words"):
    texts += [(name, text) for text in getattr(settings, name)]
  for name, text in texts:
    require_unicode(text, f"{where}: {name}")
