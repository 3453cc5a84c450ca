"""From what a user asks for to requests of ids."""

import dataclasses
import json
import operator
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mtpjax import config as config_lib
from mtpjax import decode
from mtpjax.data import (
  TEMPLATE_FIELDS,
  Message,
  TemplateFields,
  Tokenizer,
  decode_utf8,
  read_messages,
  read_template_fields,
  require_unicode,
)
from mtpjax.decode import grammar
from mtpjax.errors import UserError

Prompt = str | Sequence[int] | Mapping[str, Any]

PER_REQUEST = frozenset(
  path.removeprefix("decode.")
  for path, field in config_lib.fields()
  if field.metadata["per_request"]
)
_TEXTS = frozenset(
  path.removeprefix("decode.")
  for path, field in config_lib.fields()
  if path.startswith("decode.") and config_lib.is_texts(field.type)
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


def read_prompt(prompt: Prompt, config: config_lib.Config, where: str) -> Asked:
  """Reads a prompt.

  Args:
    prompt: a text; ids; or a mapping with "text", "ids" or "messages" (see
      `data.read_messages`; beside them what `data.read_template_fields` reads,
      as "tools"), and optionally "class" and settings of `config.Decode` that a
      request may have.
    config: the settings of the call.
    where: names the prompt in errors.

  Returns:
    What is asked.

  Raises:
    UserError: neither text nor ids nor messages, text that is not Unicode,
      or a setting that is unknown, not a request's own, or out of range.
  """
  if not isinstance(prompt, Mapping):
    if not isinstance(prompt, str) and not _is_ids(prompt):
      raise UserError(
        f"{where}: {config_lib.shown(prompt)} is neither a text nor a list of "
        "ids; a prompt of ids is a list of its own, as [[1, 2], [3]]"
      )
    asked = Asked(prompt, config.decode, _kind(config.decode), False)
    return _require_unicode(asked, where)
  own = dict(prompt)
  text, ids, messages, kind = (
    own.pop(key, None) for key in ("text", "ids", "messages", "class")
  )
  n_contents = sum((isinstance(text, str), _is_ids(ids), messages is not None))
  if n_contents != 1 or (kind and not isinstance(kind, str)):
    raise UserError(
      f'{where}: needs "text" (a string), "ids" (a list of integers) or '
      '"messages" (of a chat), not both; its "class" is a string'
    )
  fields: TemplateFields = {}
  if messages is not None:
    fields = read_template_fields(own, where)
    own = {k: v for k, v in own.items() if k not in TEMPLATE_FIELDS}
  for name in own:
    if name not in PER_REQUEST:
      close = config_lib.nearest(str(name), sorted(PER_REQUEST))
      shown = config_lib.shown(name)
      raise UserError(f"{where}: {shown} is no setting of a prompt{close}")
  try:
    settings = override_settings(config, own).decode
  except UserError as error:
    raise UserError(f"{where}: {error}") from error
  content = text if isinstance(text, str) else ids
  if messages is not None:
    content = read_messages(messages, where)
  asked = Asked(
    content, settings, kind or _kind(settings), "seed" in own, fields
  )
  return _require_unicode(asked, where)


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


def _require_unicode(asked: Asked, where: str) -> Asked:
  """Returns what is asked; raises UserError if UTF-8 can't hold its texts."""
  settings = asked.settings
  texts = [(name, getattr(settings, name)) for name in ("regex", "json_schema")]
  for name in ("stop", "bad_words"):
    texts += [(name, text) for text in getattr(settings, name)]
  for name, text in texts:
    require_unicode(text, f"{where}: {name}")
  if isinstance(asked.content, str):
    require_unicode(asked.content, where)
  return asked


def _kind(settings: config_lib.Decode) -> str:
  return "sampled" if settings.temperature > 0 else "greedy"


class RequestMaker:
  """Turns what is asked into requests; compiles each grammar once."""

  def __init__(
    self,
    tokenizer: Tokenizer,
    eos_ids: Sequence[int],
    missing_ids: frozenset[int],
    vocab_size: int,
  ):
    self._tokenizer = tokenizer
    self._eos_ids = eos_ids
    self._missing_ids = missing_ids
    self._vocab_size = vocab_size
    self._grammars: dict[tuple[str, str], grammar.Grammar] = {}

  def make(
    self,
    asked: Asked,
    ids: Sequence[int],
    index: int,
    where: str,
    capacity: int = 0,
  ) -> decode.Request:
    """Returns the request.

    Args:
      asked: the prompt.
      ids: its ids.
      index: its place in the call.
      where: names the prompt in errors.
      capacity: see `decode.Request`.

    Returns:
      The request.

    Raises:
      UserError: a setting that cannot be read, a grammar that admits nothing,
        or a prompt that leaves no room for more.
    """
    s = asked.settings
    new = s.max_new_tokens
    for name in ("stop", "bad_words"):
      if "" in getattr(s, name):
        raise UserError(
          f"{where}: {name} {config_lib.shown(getattr(s, name))} has one "
          "without characters; leave it out"
        )
    if s.cache_tokens and len(ids) >= s.cache_tokens:
      raise UserError(
        f"{where}: {len(ids)} tokens leave no room in a text of cache_tokens = "
        f"{s.cache_tokens}; raise it or shorten the prompt"
      )
    if s.cache_tokens:
      new = min(new, s.cache_tokens - len(ids))
    return decode.Request(
      ids=tuple(ids),
      max_new_tokens=new,
      temperature=s.temperature,
      seed=s.seed,
      index=0 if asked.has_own_seed else index,
      min_new_tokens=min(s.min_new_tokens, new),
      top_k=s.top_k,
      top_p=s.top_p,
      min_p=s.min_p,
      repetition_penalty=s.repetition_penalty,
      frequency_penalty=s.frequency_penalty,
      presence_penalty=s.presence_penalty,
      logit_bias=tuple(_bias(text, where) for text in s.logit_bias),
      bad_words=self._bad_words(s.bad_words, where),
      stop_sequences=tuple(_ids(text, where) for text in s.stop_ids),
      grammar=self._grammar(s, where),
      missing_ids=self._missing_ids,
      kind=asked.kind,
      capacity=capacity,
    )

  def _bad_words(
    self, words: Sequence[str], where: str
  ) -> tuple[tuple[int, ...], ...]:
    # Most tokenizers write a word otherwise after a space. White space is
    # itself: banning a line feed must not ban the space.
    spellings = [
      spelling
      for word in words
      for spelling in ([word] if word[:1].isspace() else [word, " " + word])
    ]
    found = dict.fromkeys(tuple(self._tokenizer.encode(s)) for s in spellings)
    if not all(found):
      raise UserError(
        f"{where}: bad_words {config_lib.shown(words)} has one without tokens; "
        "leave it out"
      )
    return tuple(found)

  def _grammar(
    self, settings: config_lib.Decode, where: str
  ) -> grammar.Grammar | None:
    key = (settings.regex, settings.json_schema)
    if not any(key):
      return None
    if not self._eos_ids and self._tokenizer.eos_ids:
      raise UserError(
        f"{where}: a grammar needs an EOS to end the text; leave --ignore-eos "
        "(ignore_eos) out"
      )
    if key not in self._grammars:
      self._grammars[key] = self._compiled(settings, where)
      n_edges = sum(len(made.tokens_E) for made in self._grammars.values())
      if n_edges > grammar.compile.MAX_EDGES:
        raise UserError(
          f"{where}: the grammars of this call have {n_edges} token edges, "
          f"more than the {grammar.compile.MAX_EDGES} supported; make several "
          "calls"
        )
    return self._grammars[key]

  def _compiled(
    self, settings: config_lib.Decode, where: str
  ) -> grammar.Grammar:
    size = self._vocab_size
    # A tokenizer may have tokens, such as a <pad>, that the model lacks.
    arguments = (
      {i: b for i, b in self._tokenizer.token_bytes().items() if i < size},
      [i for i in self._eos_ids if i < size],
      size,
    )
    try:
      if settings.regex:
        return grammar.compile_regex(settings.regex, *arguments)
      schema = _read_schema(settings.json_schema, where)
      return grammar.compile_json_schema(schema, *arguments)
    except UserError as error:
      if str(error).startswith(where):
        raise
      raise UserError(f"{where}: {error}") from error


def _read_schema(text: str, where: str) -> str:
  text = text.removeprefix("\ufeff")
  if text.lstrip().startswith("{") or text.strip() in ("true", "false"):
    return text
  where = f"{where}: json_schema {config_lib.shown(text)}"
  path = pathlib.Path(text)
  try:
    is_file = path.is_file()
    raw = path.read_bytes() if is_file else b""
  except OSError as error:  # too long a name, or not ours to read
    raise UserError(
      f"{where} is no JSON object, and as a file it cannot be read: "
      f"{error.strerror}"
    ) from error
  if not is_file:
    raise UserError(f"{where} is neither a JSON object nor a file")
  return decode_utf8(raw, where)


def _bias(text: str, where: str) -> tuple[int, float]:
  token, _, value = text.partition(":")
  try:
    return int(token), float(value)
  except ValueError as error:
    raise UserError(
      f"{where}: logit_bias {config_lib.shown(text)} is not of the form "
      "ID:VALUE, as 50:-100; give each on its own"
    ) from error


def _ids(text: str, where: str) -> tuple[int, ...]:
  try:
    return tuple(int(part) for part in text.split(","))
  except ValueError as error:
    raise UserError(
      f"{where}: stop_ids {config_lib.shown(text)} is not of the form ID,ID, "
      "as 13,13; give each sequence on its own"
    ) from error
