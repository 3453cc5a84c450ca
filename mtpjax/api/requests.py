"""From what is asked to requests of ids."""

import pathlib
from collections.abc import Sequence

from mtpjax import config as config_lib
from mtpjax import decode
from mtpjax.api.prompts import Asked
from mtpjax.data import Tokenizer, decode_utf8
from mtpjax.decode import grammar
from mtpjax.errors import UserError


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
    numbers = {name: getattr(s, name) for name in config_lib.NUMBERS}
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
      index=0 if asked.has_own_seed else index,
      logit_bias=tuple(_bias(text, where) for text in s.logit_bias),
      bad_words=self._bad_words(s.bad_words, where),
      stop_sequences=tuple(_ids(text, where) for text in s.stop_ids),
      grammar=self._grammar(s, where),
      missing_ids=self._missing_ids,
      kind=asked.kind,
      capacity=capacity,
      **numbers | {"min_new_tokens": min(s.min_new_tokens, new)},
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
