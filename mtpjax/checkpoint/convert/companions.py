"""Files that lie beside weights: the tokenizer, and how a text begins and ends.

tokenizer.json decides what ids mean. tokenizer_config.json names BOS and EOS
and may hold a chat template; generation_config.json says what ends a text.
"""

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


def read_json(path: pathlib.Path) -> dict[str, Any]:
  """Reads a JSON object; UserError if there is none."""
  if not path.is_file():
    raise UserError(f"{path}: no such file; copy it from where the weights are")
  return _parse(_read_text(path), path)


def add_ends(files: dict[str, str], eos_token_id: Any) -> dict[str, str]:
  """Adds what ends a text, if only config.json says it.

  Args:
    files: see `read_files`.
    eos_token_id: an id, several, or None.

  Returns:
    The files, with a generation_config.json if no file says what ends a text.
  """
  settings = files.get("tokenizer_config.json", "")
  if eos_token_id is None or GENERATION in files or '"eos_token"' in settings:
    return files
  return files | {GENERATION: json.dumps({"eos_token_id": eos_token_id})}


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
  size = max(vocabulary.values(), default=-1) + 1
  if size > vocab_size:
    raise UserError(
      f"{file}: has ids up to {size - 1}, the model {vocab_size} in all; it is "
      "the tokenizer of another vocabulary"
    )

  def read(name: str) -> dict[str, Any]:
    return _parse(files[name], path / name) if name in files else {}

  settings, generation = read("tokenizer_config.json"), read(GENERATION)
  encoded = tokenizer.encode("a", add_special_tokens=True)
  mask = encoded.special_tokens_mask
  added = encoded.tokens[0] if mask and mask[0] else None
  says_bos = settings.get("add_bos_token")
  bos_token = _text_of(settings.get("bos_token")) or added
  eos = generation.get("eos_token_id")
  # What is written after a document comes first.
  eos_tokens = [
    _text_of(settings.get("eos_token")),
    *(
      tokenizer.id_to_token(i)
      for i in (eos if isinstance(eos, list) else [eos])
      if i is not None
    ),
  ]
  return {
    "add_bos": added is not None if says_bos is None else bool(says_bos),
    "add_eos": True,
    "bos_token": bos_token if bos_token in vocabulary else "",
    "eos_tokens": tuple(
      dict.fromkeys(t for t in eos_tokens if t and t in vocabulary)
    ),
  }


def _text_of(token: Any) -> str | None:
  """Returns a token of tokenizer_config.json, a text or a description."""
  return token.get("content") if isinstance(token, dict) else token


def _parse(text: str, path: pathlib.Path) -> dict[str, Any]:
  try:
    values = json.loads(text)
  except json.JSONDecodeError as error:
    raise UserError(f"{path}: not valid JSON ({error}); copy it again") from (
      error
    )
  if not isinstance(values, dict):
    raise UserError(f"{path}: is no JSON object of fields; copy it again")
  return values


def _read_text(path: pathlib.Path) -> str:
  # By bytes: line ends stay as they are.
  try:
    return path.read_bytes().decode("utf-8")
  except UnicodeDecodeError as error:
    raise UserError(f"{path}: is not UTF-8; copy it again") from error
