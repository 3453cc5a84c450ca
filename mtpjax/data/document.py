"""A document: the unit that is tokenised, packed and held out as a whole."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from mtpjax.errors import UserError


class InvalidText(UserError):
  """Text that is not Unicode; `replace_invalid` reads it as U+FFFD."""


@dataclasses.dataclass(frozen=True)
class Document:
  """One document.

  Attributes:
    name: where it comes from; decides which split it belongs to.
    parts: (text, is it trained?) in order. Plain text is one trained part, a
      prompt and its completion are (prompt, False), (completion, True). A
      document without parts is one the source chose not to read.
  """

  name: str
  parts: tuple[tuple[str, bool], ...]


def decode_utf8(raw: bytes, where: str, replace_invalid: bool = False) -> str:
  """Decodes UTF-8.

  Args:
    raw: the bytes.
    where: named in the error: a file, or a file and line.
    replace_invalid: read what is not UTF-8 as U+FFFD.

  Returns:
    The text.

  Raises:
    InvalidText: not UTF-8, and `replace_invalid` is false.
  """
  try:
    return raw.decode("utf-8", "replace" if replace_invalid else "strict")
  except UnicodeDecodeError as error:
    raise InvalidText(
      f"{where}: not UTF-8 at byte {error.start} (0x{raw[error.start]:02x})"
    ) from error


def require_unicode(
  text: str, where: str, replace_invalid: bool = False
) -> str:
  """Returns the text if UTF-8 can hold it.

  JSON can spell half of a surrogate pair (\\ud83d), and Python reads bytes of
  the command line that are not UTF-8 as such halves.

  Args:
    text: any string.
    where: named in the error.
    replace_invalid: read lone surrogates as U+FFFD.

  Returns:
    The text.

  Raises:
    InvalidText: it has a lone surrogate, and `replace_invalid` is false.
  """
  try:
    text.encode("utf-8")
  except UnicodeEncodeError as error:
    if not replace_invalid:
      raise InvalidText(
        f"{where}: lone surrogate U+{ord(text[error.start]):04X} at "
        f"character {error.start}"
      ) from error
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
  return text


def document_from_record(
  record: Any, fields: Sequence[str], where: str, replace_invalid: bool
) -> Document:
  """Makes a document of one field, or of a prompt and a completion field.

  Args:
    record: a mapping from field names to str or UTF-8 bytes.
    fields: one name (plain text) or two (prompt, completion).
    where: the document's name, and what errors name.
    replace_invalid: as in `decode_utf8`.

  Returns:
    The document.

  Raises:
    UserError: the record is no mapping, lacks a field, or the field is not
      a string; `InvalidText`, a kind of it, where it is not Unicode.
  """
  if not isinstance(record, Mapping):
    raise UserError(
      f"{where}: {type(record).__name__} instead of an object with fields; "
      f'write {{"{fields[0]}": ...}}'
    )
  texts = []
  for field in fields:
    if field not in record:
      raise UserError(
        f"{where}: no field {field!r}; there are {', '.join(map(str, record))}"
      )
    texts.append(_text(record[field], where, field, replace_invalid))
  trained = (True,) if len(texts) == 1 else (False, True)
  return Document(where, tuple(zip(texts, trained, strict=True)))


def _text(value: Any, where: str, field: str, replace_invalid: bool) -> str:
  where = f"{where}: field {field!r}"
  if isinstance(value, bytes):
    return decode_utf8(value, where, replace_invalid)
  if not isinstance(value, str):
    raise UserError(
      f"{where}: {type(value).__name__} instead of a string; name a text field"
    )
  return require_unicode(value, where, replace_invalid)
