"""Files that lie beside weights: the tokenizer, and how a text begins and ends.

tokenizer.json decides what ids mean. tokenizer_config.json (or the older
special_tokens_map.json) names BOS and EOS and may hold a chat template;
generation_config.json says what ends a text, and so may the model's
config.json. A text ends at each of them.
"""

import codecs
import json
import pathlib
from collections.abc import Mapping
from typing import Any

from mtpjax.errors import UserError

TOKENIZER = "tokenizer.json"
GENERATION = "generation_config.json"
FILES = (
  TOKENIZER,
  "tokenizer_config.json",
  "special_tokens_map.json",
  GENERATION,
  "chat_template.jinja",
)


def read_files(folder: pathlib.Path) -> dict[str, str]:
  """Returns the texts of those of `FILES` that are in a folder.

  Raises:
    UserError: there is no tokenizer.json, or a file is not UTF-8.
  """
  if not (folder / TOKENIZER).is_file():
    raise UserError(
      f"{folder / TOKENIZER}: no such file; make it with transformers: "
      f"AutoTokenizer.from_pretrained({str(folder)!r}).save_pretrained(...)"
    )
  return {
    name: _read_text(folder / name)
    for name in FILES
    if (folder / name).is_file()
  }


def copy_files(folder: pathlib.Path, to: pathlib.Path) -> None:
  """Copies those of `FILES` that are in a folder to another one."""
  for name in FILES:
    if (folder / name).is_file():
      (to / name).write_bytes((folder / name).read_bytes())


def read_json(path: pathlib.Path) -> dict[str, Any]:
  """Reads a JSON object; UserError if there is none."""
  if not path.is_file():
    raise UserError(f"{path}: no such file; copy it from where the weights are")
  return _parse(_read_text(path), path)


def add_ends(
  files: dict[str, str], values: Mapping[str, Any], path: pathlib.Path
) -> dict[str, str]:
  """Adds to what ends a text what config.json says.

  Args:
    files: see `read_files`.
    values: of config.json; that of a model of several kinds of input has those
      of its text part nested in it.
    path: where the files are from, for errors.

  Returns:
    The files, with a generation_config.json that names those ids, too.

  Raises:
    UserError: an id is not a whole number.
  """
  nested = values.get("text_config")
  further = _ids(values.get("eos_token_id"), path / "config.json") + _ids(
    nested.get("eos_token_id") if isinstance(nested, Mapping) else None,
    path / "config.json",
  )
  generation = (
    _parse(files[GENERATION], path / GENERATION) if GENERATION in files else {}
  )
  there = _ids(generation.get("eos_token_id"), path / GENERATION)
  ids = list(dict.fromkeys((*there, *further)))
  if ids == there:
    return files
  generation["eos_token_id"] = ids[0] if len(ids) == 1 else ids
  return files | {GENERATION: json.dumps(generation)}


def data_fields(
  path: pathlib.Path, files: Mapping[str, str], vocab_size: int
) -> dict[str, Any]:
  """Returns how a document begins and ends, for `config.Data`.

  These are the tokens that `data.load_tokenizer` finds in the same files.

  Args:
    path: where the files are from, for errors.
    files: see `read_files`.
    vocab_size: of the model.

  Returns:
    The fields `add_bos`, `add_eos`, `bos_token` and `eos_tokens`.

  Raises:
    UserError: a file cannot be read, or the tokenizer has more ids than the
      model.
  """
  import tokenizers

  file = path / TOKENIZER
  try:
    tokenizer = tokenizers.Tokenizer.from_str(files[TOKENIZER])
  # The library's Rust side raises plain Exception.
  except Exception as error:
    reason = str(error).partition("\n")[0]
    raise UserError(
      f"{file}: the `tokenizers` library cannot load it ({reason}); copy it "
      "again, or install a newer tokenizers"
    ) from error
  vocabulary = tokenizer.get_vocab(with_added_tokens=True)
  # Tokens added since, as one for padding, may be beyond the model's: who uses
  # one is refused then.
  own = tokenizer.get_vocab(with_added_tokens=False)
  size = max(own.values(), default=-1) + 1
  if size > vocab_size:
    raise UserError(
      f"{file}: has ids up to {size - 1}, the model {vocab_size} in all; it is "
      "the tokenizer of another vocabulary"
    )

  def read(name: str) -> dict[str, Any]:
    return _parse(files[name], path / name) if name in files else {}

  settings, generation = read("tokenizer_config.json"), read(GENERATION)
  older = read("special_tokens_map.json")
  encoded = tokenizer.encode("a", add_special_tokens=True)
  mask = encoded.special_tokens_mask
  added = encoded.tokens[0] if mask and mask[0] else None
  says_bos = settings.get("add_bos_token")
  named = settings if "bos_token" in settings else older
  bos_token = _text_of(named.get("bos_token")) or added
  ids = _ids(generation.get("eos_token_id"), path / GENERATION)
  # What is written after a document comes first.
  eos_tokens = [
    _text_of(settings.get("eos_token")),
    _text_of(older.get("eos_token")),
    *(tokenizer.id_to_token(i) for i in ids if 0 <= i < vocab_size),
  ]
  known = {token for token, i in vocabulary.items() if i < vocab_size}
  return {
    "add_bos": added is not None if says_bos is None else bool(says_bos),
    "add_eos": True,
    "bos_token": bos_token if bos_token in known else "",
    "eos_tokens": tuple(dict.fromkeys(t for t in eos_tokens if t in known)),
  }


def _ids(value: Any, file: pathlib.Path) -> list[int]:
  """Returns the ids of an eos_token_id: a number, several, or null."""
  ids = value if isinstance(value, list) else [] if value is None else [value]
  if not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
    raise UserError(
      f"{file}: eos_token_id {value!r} is neither a whole number nor a list of "
      "them; correct it"
    )
  return ids


def _text_of(token: Any) -> str | None:
  """Returns a token of tokenizer_config.json, a text or a description."""
  text = token.get("content") if isinstance(token, dict) else token
  return text if isinstance(text, str) else None


def _parse(text: str, path: pathlib.Path) -> dict[str, Any]:
  try:
    values = json.loads(text)
  except json.JSONDecodeError as error:
    raise UserError(f"{path}: not valid JSON ({error}); copy it again") from (
      error
    )
  except (ValueError, RecursionError) as error:
    raise UserError(
      f"{path}: has a number or a nesting out of all measure; copy it again"
    ) from error
  if not isinstance(values, dict):
    raise UserError(f"{path}: is no JSON object of fields; copy it again")
  return values


def _read_text(path: pathlib.Path) -> str:
  # By bytes: line ends stay as they are.
  try:
    return path.read_bytes().removeprefix(codecs.BOM_UTF8).decode("utf-8")
  except UnicodeDecodeError as error:
    raise UserError(f"{path}: is not UTF-8; copy it again") from error
