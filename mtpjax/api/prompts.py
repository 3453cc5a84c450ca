"""From what a user asks for to requests of ids."""

import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from mtpjax import config as config_lib
from mtpjax import decode
from mtpjax.data import Tokenizer
from mtpjax.decode import grammar
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
    content: a text or ids.
    settings: those of the call, with the prompt's own in their place.
    kind: class of the prompt; acceptance is tracked per class.
    has_own_seed: its noise does not depend on its place in the call.
  """

  content: str | Sequence[int]
  settings: config_lib.Decode
  kind: str
  has_own_seed: bool


def read_prompt(prompt: Prompt, config: config_lib.Config, where: str) -> Asked:
  """Reads a prompt.

  Args:
    prompt: a text; ids; or a mapping with "text" or "ids", and optionally
      "class" and settings of `config.Decode` that a request may have.
    config: the settings of the call.
    where: names the prompt in errors.

  Returns:
    What is asked.

  Raises:
    UserError: neither text nor ids, or a setting that is unknown, not a
      request's own, or out of range.
  """
  if not isinstance(prompt, Mapping):
    return Asked(prompt, config.decode, _kind(config.decode), False)
  own = dict(prompt)
  text, ids, kind = (own.pop(key, None) for key in ("text", "ids", "class"))
  is_ids = isinstance(ids, list | tuple) and all(type(i) is int for i in ids)
  if isinstance(text, str) == is_ids or (kind and not isinstance(kind, str)):
    raise UserError(
      f'{where}: needs "text" (a string) or "ids" (a list of integers), not '
      'both; its "class" is a string'
    )
  for name in own:
    if name not in PER_REQUEST:
      close = config_lib.nearest(name, sorted(PER_REQUEST))
      raise UserError(f"{where}: {name!r} is no setting of a prompt{close}")
  if isinstance(own.get("json_schema"), Mapping):
    own["json_schema"] = json.dumps(own["json_schema"])
  changes = {f"decode.{name}": value for name, value in own.items()}
  try:
    settings = config_lib.override(config, changes).decode
  except UserError as error:
    raise UserError(f"{where}: {error}") from error
  return Asked(
    ids if text is None else text,
    settings,
    kind or _kind(settings),
    "seed" in own,
  )


def _kind(settings: config_lib.Decode) -> str:
  return "sampled" if settings.temperature > 0 else "greedy"


class RequestMaker:
  """Turns what is asked into requests; compiles each grammar once."""

  def __init__(
    self, tokenizer: Tokenizer, eos_ids: Sequence[int], vocab_size: int
  ):
    self._tokenizer = tokenizer
    self._eos_ids = eos_ids
    self._vocab_size = vocab_size
    self._grammars: dict[tuple[str, str], grammar.Grammar] = {}

  def make(
    self, asked: Asked, ids: Sequence[int], index: int, where: str
  ) -> decode.Request:
    """Returns the request.

    Args:
      asked: the prompt.
      ids: its ids.
      index: its place in the call.
      where: names the prompt in errors.

    Returns:
      The request.

    Raises:
      UserError: a setting that cannot be read, a grammar that admits nothing,
        or a prompt that fills the cache.
    """
    s = asked.settings
    new = s.max_new_tokens
    if not all(s.stop):
      raise UserError(f"{where}: stop {s.stop!r} has one without characters")
    if s.cache_tokens and len(ids) >= s.cache_tokens:
      raise UserError(
        f"{where}: {len(ids)} tokens leave no room in a cache of "
        f"{s.cache_tokens}; raise decode.cache_tokens or shorten the prompt"
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
      kind=asked.kind,
    )

  def _bad_words(
    self, words: Sequence[str], where: str
  ) -> tuple[tuple[int, ...], ...]:
    # Most tokenizers write a word otherwise behind a space.
    spellings = [s for word in words for s in (word, " " + word.lstrip())]
    found = dict.fromkeys(tuple(self._tokenizer.encode(s)) for s in spellings)
    if not all(found):
      raise UserError(f"{where}: bad_words {words!r} has one without tokens")
    return tuple(found)

  def _grammar(
    self, settings: config_lib.Decode, where: str
  ) -> grammar.Grammar | None:
    key = (settings.regex, settings.json_schema)
    if not any(key):
      return None
    if key not in self._grammars:
      arguments = (
        self._tokenizer.token_bytes(), self._eos_ids, self._vocab_size
      )  # fmt: skip
      if settings.regex:
        made = grammar.compile_regex(settings.regex, *arguments)
      else:
        made = grammar.compile_json_schema(
          _read_schema(settings.json_schema, where), *arguments
        )
      self._grammars[key] = made
    return self._grammars[key]


def _read_schema(text: str, where: str) -> str:
  if text.lstrip().startswith("{"):
    return text
  path = pathlib.Path(text)
  if not path.is_file():
    raise UserError(
      f"{where}: json_schema {text!r} is neither a JSON object nor a file"
    )
  return path.read_text(encoding="utf-8")


def _bias(text: str, where: str) -> tuple[int, float]:
  token, _, value = text.partition(":")
  try:
    return int(token), float(value)
  except ValueError as error:
    raise UserError(
      f"{where}: logit_bias {text!r} is not of the form ID:VALUE, as 50:-100"
    ) from error


def _ids(text: str, where: str) -> tuple[int, ...]:
  try:
    return tuple(int(part) for part in text.split(","))
  except ValueError as error:
    raise UserError(
      f"{where}: stop_ids {text!r} is not of the form ID,ID, as 13,13"
    ) from error
