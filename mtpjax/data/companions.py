"""A `tokenizer.json` and what lies beside it, as Hugging Face publishes them.

tokenizer.json decides what ids mean. tokenizer_config.json (or the older
special_tokens_map.json) names BOS and EOS and may hold a chat template;
generation_config.json says what ends a text, and so may the model's
config.json. A text ends at each of them.
"""

import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from mtpjax.config.published import Fields, parse_object
from mtpjax.data.byte_vocabulary import is_definition
from mtpjax.data.document import decode_utf8
from mtpjax.errors import UserError

TOKENIZER = "tokenizer.json"
CONFIG = "tokenizer_config.json"
TOKENS = "special_tokens_map.json"
GENERATION = "generation_config.json"
MODEL = "config.json"
TEMPLATE = "chat_template.jinja"
FILES = (TOKENIZER, CONFIG, TOKENS, GENERATION, TEMPLATE)


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


def read_files(
  folder: pathlib.Path, names: Sequence[str] = FILES
) -> dict[str, bytes]:
  """Returns the contents of those of the files that are in a folder."""
  return {
    name: (folder / name).read_bytes()
    for name in names
    if (folder / name).is_file()
  }


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
  found = companions_of(read_files(folder, FILES[1:]), folder)
  return dataclasses.replace(found, model_eos_ids=_model_ids(folder))


def companions_of(
  files: Mapping[str, bytes], folder: pathlib.Path
) -> Companions:
  """Returns what files say; see `read_companions`.

  Args:
    files: their bytes, by name.
    folder: where they are from, for errors.
  """
  files = {name: raw for name, raw in files.items() if name in FILES[1:]}

  def read(name: str) -> Fields:
    where = str(folder / name)
    raw = files.get(name)
    text = "{}" if raw is None else decode_utf8(raw, where)
    return Fields(parse_object(text, where), where)

  config, tokens, generation = read(CONFIG), read(TOKENS), read(GENERATION)
  says_bos = next(
    (f for f in (config, tokens) if "bos_token" in f.values), None
  )
  eos_tokens = _token(config, "eos_token") + _token(tokens, "eos_token")
  if not {"bos_token", "eos_token"} & set(tokens.values):
    files.pop(TOKENS, None)
  adds_bos = config.get("add_bos_token")
  if adds_bos is not None and not isinstance(adds_bos, bool):
    raise config.error("add_bos_token", "is neither true nor false")
  has_template = TEMPLATE in files
  return Companions(
    files,
    None if says_bos is None else _token(says_bos, "bos_token"),
    tuple(dict.fromkeys(eos_tokens)),
    generation.ids("eos_token_id"),
    (),
    adds_bos,
    decode_utf8(files[TEMPLATE], str(folder / TEMPLATE))
    if has_template
    else _template(config),
    TEMPLATE if has_template else CONFIG,
  )


def published_files(
  source: pathlib.Path | Mapping[str, str],
) -> dict[str, bytes]:
  """Returns a tokenizer's files, to lie in a folder without the model's.

  Args:
    source: the folder they are in, or their texts by name.

  Returns:
    Their contents by name. What ends a text by the config.json of a model is
    in the generation_config.json.

  Raises:
    UserError: a file that says what ends a text is damaged.
  """
  if isinstance(source, Mapping):
    return {name: text.encode() for name, text in source.items()}
  files = read_files(source)
  ends = _model_ids(source)
  if set(ends) - set(companions_of(files, source).eos_ids):
    where = str(source / GENERATION)
    files[GENERATION] = with_ends(files.get(GENERATION), ends, where)
  return files


def document_fields(
  files: Mapping[str, bytes], folder: pathlib.Path, vocab_size: int
) -> dict[str, Any]:
  """Returns how a document begins and ends, for `config.Data`.

  These are the tokens that `load_tokenizer` finds in the same files.

  Args:
    files: a tokenizer.json and what lies beside it, by name.
    folder: where they are from, for errors.
    vocab_size: of the model.

  Returns:
    The fields `add_bos`, `add_eos`, `bos_token` and `eos_tokens`; of the
    vocabulary of bytes the field `tokenizer`, which says all.

  Raises:
    UserError: a file is missing or damaged, or the tokenizer has more ids than
      the model.
  """
  import tokenizers

  file = folder / TOKENIZER
  if TOKENIZER not in files:
    raise UserError(
      f"{file}: no such file; make it with transformers: "
      f"AutoTokenizer.from_pretrained({str(folder)!r}).save_pretrained(...)"
    )
  text = decode_utf8(files[TOKENIZER], str(file))
  try:
    tokenizer = tokenizers.Tokenizer.from_str(text)
  # The library's Rust side raises plain Exception.
  except Exception as error:
    reason = str(error).partition("\n")[0]
    raise UserError(
      f"{file}: the `tokenizers` library cannot load it ({reason}); copy it "
      "again, or install a newer tokenizers"
    ) from error
  # Tokens added since, as one for padding, may be beyond the model's: who uses
  # one is refused then.
  own = tokenizer.get_vocab(with_added_tokens=False)
  size = max(own.values(), default=-1) + 1
  if size > vocab_size:
    raise UserError(
      f"{file}: has ids up to {size - 1}, the model {vocab_size} in all; it is "
      "the tokenizer of another vocabulary"
    )
  if is_definition(text):
    return {"tokenizer": "bytes"}
  said = companions_of(files, folder)
  encoded = tokenizer.encode("a", add_special_tokens=True)
  mask = encoded.special_tokens_mask
  added = encoded.tokens[0] if mask and mask[0] else None
  bos_token = next(iter(said.bos_tokens or ()), added)
  # What is written after a document comes first.
  eos_tokens = [
    *said.eos_tokens,
    *(tokenizer.id_to_token(i) for i in said.eos_ids if 0 <= i < vocab_size),
  ]
  vocabulary = tokenizer.get_vocab(with_added_tokens=True)
  known = {token for token, i in vocabulary.items() if i < vocab_size}
  return {
    "add_bos": added is not None if said.adds_bos is None else said.adds_bos,
    "add_eos": True,
    "bos_token": bos_token if bos_token in known else "",
    "eos_tokens": tuple(dict.fromkeys(t for t in eos_tokens if t in known)),
  }


def with_ends(raw: bytes | None, ids: Sequence[int], source: str) -> bytes:
  """Returns a generation_config.json in which further ids end a text.

  Args:
    raw: the file; None where there is none.
    ids: to be named besides those it names.
    source: the file, for errors.
  """
  text = "{}" if raw is None else decode_utf8(raw, source)
  values = parse_object(text, source)
  there = Fields(values, source).ids("eos_token_id")
  named = list(dict.fromkeys((*there, *ids)))
  values["eos_token_id"] = named[0] if len(named) == 1 else named
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
  # That of a model of several kinds of input has its text part nested.
  nested = values.get("text_config")
  inner = nested if isinstance(nested, dict) else {}
  ids = [Fields(v, str(file)).ids("eos_token_id") for v in (values, inner)]
  return tuple(dict.fromkeys(ids[0] + ids[1]))


def _token(fields: Fields, name: str) -> tuple[str, ...]:
  """Returns the token, spelled out or as an object; none if it is null."""
  value = fields.get(name)
  content = value.get("content") if isinstance(value, dict) else value
  if value is None:
    return ()
  if not isinstance(content, str):
    raise fields.error(name, 'is neither a string nor an object with "content"')
  return (content,)


def _template(config: Fields) -> str | None:
  """Returns the only template, or of several the one named "default"."""
  value = config.get("chat_template")
  if value is None or isinstance(value, str):
    return value
  if isinstance(value, list) and all(isinstance(v, dict) for v in value):
    named = {v.get("name"): v.get("template") for v in value}
    template = named.get("default")
    if template is None or isinstance(template, str):
      return template
  raise UserError(
    f"{config.source}: chat_template is neither a string nor a list of objects "
    'with "name" and "template"'
  )
