"""A document: the unit that is tokenised, packed and held out as a whole."""

import codecs
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from mtpjax.errors import UserError

# The role whose turns are trained.
ASSISTANT = "assistant"
# One message of a conversation: "role", "content" and what templates read
# besides.
Message = dict[str, Any]
# What a record says to the chat template besides the messages, by name.
TemplateFields = Mapping[str, Any]
TEMPLATE_FIELDS = (
  "tools", "documents", "enable_thinking", "chat_template_kwargs",
)  # fmt: skip


class InvalidText(UserError):
  """Text that is not Unicode; `replace_invalid` reads it as U+FFFD."""


class LongText(Protocol):
  """A text that is read in pieces and never held in memory."""

  def pieces(self, count: Callable[[int], None] = ...) -> Iterator[str]:
    """Yields the text in order; `count` gets the bytes read from the disk."""


@dataclasses.dataclass(frozen=True)
class Document:
  """One document.

  Attributes:
    name: where it comes from; decides which split it belongs to.
    parts: (text, is it trained?) in order. Plain text is one trained part, a
      prompt and its completion are (prompt, False), (completion, True), the
      messages of a conversation are their contents.
    messages: the conversation, if it is one: its text is the tokenizer's
      affair. Empty if it is none.
    is_held_out: whether its source says that it is for validation; None where
      its name decides.
    template_fields: what the conversation's template is given besides; see
      `read_template_fields`.
    long_text: plain text, instead of `parts`, where it is long.
  """

  name: str
  parts: tuple[tuple[str, bool], ...]
  messages: tuple[Message, ...] = ()
  is_held_out: bool | None = None
  template_fields: TemplateFields = dataclasses.field(default_factory=dict)
  long_text: LongText | None = None

  @property
  def is_read(self) -> bool:
    """False where the source chose not to read the document."""
    return bool(self.parts) or self.long_text is not None


def decode_utf8(raw: bytes, where: str, replace_invalid: bool = False) -> str:
  """Decodes UTF-8, without the byte-order mark that some files begin with.

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
    text = raw.decode("utf-8", "replace" if replace_invalid else "strict")
    return text[1:] if raw.startswith(codecs.BOM_UTF8) else text
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
    record: a mapping from field names to str or UTF-8 bytes; a single field
      may be a list of messages, too.
    fields: one name (plain text or a conversation) or two (prompt,
      completion).
    where: the document's name, and what errors name.
    replace_invalid: as in `decode_utf8`.

  Returns:
    The document.

  Raises:
    UserError: the record is no mapping, lacks a field, or the field is not
      a string, nor messages; `InvalidText`, a kind of it, where it is not
      Unicode.
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
    if len(fields) == 1 and isinstance(record[field], list):
      messages = read_messages(
        record[field], f"{where}: field {field!r}", replace_invalid
      )
      return _document_of_messages(
        messages, read_template_fields(record, where, replace_invalid), where
      )
    texts.append(_text(record[field], where, field, replace_invalid))
  trained = (True,) if len(texts) == 1 else (False, True)
  return Document(where, tuple(zip(texts, trained, strict=True)))


def is_conversation(value: Any) -> bool:
  """Returns whether a prompt is messages rather than a text or ids."""
  is_list = isinstance(value, list | tuple) and len(value) > 0
  return is_list and isinstance(value[0], Mapping)


def read_messages(
  value: Any, where: str, replace_invalid: bool = False
) -> tuple[Message, ...]:
  """Reads the messages of a conversation.

  Args:
    value: a list of {"role": str, "content": str}; a content may also be a
      list of {"type": "text", "text": str}, which are joined, and null or
      left out beside calls of tools, which reads as "". Other keys are kept
      for the template.
    where: named in errors.
    replace_invalid: as in `require_unicode`.

  Returns:
    The messages, each content a str.

  Raises:
    UserError: no messages, or one that lacks its role or its content, or has
      them of another type; `InvalidText` where a content is not Unicode.
  """
  if not isinstance(value, list | tuple) or len(value) == 0:
    raise UserError(
      f"{where}: is no list of messages; write "
      '[{"role": "user", "content": "..."}, ...]'
    )
  return tuple(
    _message(message, f"{where}: message {number}", replace_invalid)
    for number, message in enumerate(value)
  )


def read_template_fields(
  record: Mapping[str, Any], where: str, replace_invalid: bool = False
) -> dict[str, Any]:
  """Reads what a record says to the chat template besides its messages.

  Args:
    record: may have "tools" and "documents" (lists of objects, or such a list
      written as JSON), "enable_thinking", and "chat_template_kwargs" (an
      object with variables of any other name). What is null counts as left
      out.
    where: named in errors.
    replace_invalid: as in `require_unicode`.

  Returns:
    The variables by name; none where the record has none.

  Raises:
    UserError: one of them is of another type.
  """
  named = record.get("chat_template_kwargs")
  named = _parsed(named, f"{where}: chat_template_kwargs")
  if not isinstance(named, Mapping | None):
    raise UserError(
      f"{where}: chat_template_kwargs is {type(named).__name__}, not an object "
      "with the template's variables by name"
    )
  found = dict(named or {})
  for name in ("messages", "add_generation_prompt"):
    if name in found:
      raise UserError(
        f"{where}: chat_template_kwargs sets {name!r}, which is not for a "
        "record to set; leave it out"
      )
  for name in ("tools", "documents"):
    value = _parsed(record.get(name), f"{where}: {name}")
    if value is None:
      continue
    if not isinstance(value, list) or not all(
      isinstance(one, Mapping) for one in value
    ):
      raise UserError(f"{where}: {name} is not a list of objects")
    found[name] = value
  thinks = record.get("enable_thinking")
  if not isinstance(thinks, bool | None):
    raise UserError(
      f"{where}: enable_thinking is {type(thinks).__name__}, neither true nor "
      "false"
    )
  if thinks is not None:
    found["enable_thinking"] = thinks
  try:
    return _unicode_in(found, where, replace_invalid)
  except RecursionError as error:
    raise UserError(f"{where}: nested too deeply") from error


def _parsed(value: Any, where: str) -> Any:
  """Returns a value; some data sets write lists and objects as JSON texts."""
  if not isinstance(value, str):
    return value
  try:
    return json.loads(value) if value.strip() else None
  except (ValueError, RecursionError) as error:
    raise UserError(f"{where} is a string that is not JSON") from error


def _unicode_in(value: Any, where: str, replace_invalid: bool) -> Any:
  """Returns a value of JSON with all its texts as of `require_unicode`."""
  if isinstance(value, str):
    return require_unicode(value, where, replace_invalid)
  if isinstance(value, Mapping):
    return {
      _unicode_in(key, where, replace_invalid): _unicode_in(
        one, where, replace_invalid
      )
      for key, one in value.items()
    }
  if isinstance(value, list | tuple):
    return [_unicode_in(one, where, replace_invalid) for one in value]
  return value


def _message(value: Any, where: str, replace_invalid: bool) -> Message:
  if not isinstance(value, Mapping):
    raise UserError(
      f"{where}: {type(value).__name__} instead of an object with "
      '"role" and "content"'
    )
  # Who calls a tool need not say anything.
  if value.get("content") is None and (
    value.get("tool_calls") or value.get("function_call")
  ):
    value = dict(value) | {"content": ""}
  for key in ("role", "content"):
    if key not in value:
      raise UserError(
        f'{where}: no "{key}"; there are {", ".join(map(str, value))}'
      )
  role, content = value["role"], value["content"]
  if not isinstance(role, str) or not role:
    raise UserError(f'{where}: "role" is {role!r}, not a name such as user')
  if isinstance(content, list | tuple):
    for piece in content:
      is_text = isinstance(piece, Mapping) and piece.get("type") == "text"
      if not is_text or not isinstance(piece.get("text"), str):
        raise UserError(
          f'{where}: "content" has something else than '
          '{"type": "text", "text": "..."}; only texts are read'
        )
    content = "".join(piece["text"] for piece in content)
  if not isinstance(content, str):
    raise UserError(
      f'{where}: "content" is {type(content).__name__}, neither a string nor '
      "a list of texts"
    )
  message = dict(value) | {"content": content}
  try:
    return _unicode_in(message, where, replace_invalid)
  except RecursionError as error:
    raise UserError(f"{where}: nested too deeply") from error


def _document_of_messages(
  messages: tuple[Message, ...], fields: TemplateFields, where: str
) -> Document:
  parts = [(m["content"], m["role"] == ASSISTANT) for m in messages]
  return Document(where, tuple(parts), messages, template_fields=fields)


def _text(value: Any, where: str, field: str, replace_invalid: bool) -> str:
  where = f"{where}: field {field!r}"
  if isinstance(value, bytes):
    return decode_utf8(value, where, replace_invalid)
  if not isinstance(value, str):
    raise UserError(
      f"{where}: {type(value).__name__} instead of a string; name a text field"
    )
  return require_unicode(value, where, replace_invalid)
