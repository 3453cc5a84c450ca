"""Chat templates: the text of a conversation, and which of it is trained."""

import dataclasses
import datetime
import functools
import json
import re
import sys
import uuid
from collections.abc import Sequence
from typing import Any

from mtpjax.data.document import (
  ASSISTANT,
  Message,
  TemplateFields,
  require_unicode,
)
from mtpjax.errors import UserError

# (where it begins, where it ends), in characters
Span = tuple[int, int]
# Words put in the place of a message's own to see where those stand. No text
# begins or ends with both, and their lengths differ.
_STAND_INS = ("\ue0a1", "\ue0a2\ue0a3\ue0a2")
# What is not cut in two: names of tokens, tags and words.
_WHOLE = re.compile(r"<[^<>\s]*>|\[[^\[\]\s]*\]|\w+")
_NO_FIELDS: TemplateFields = {}


@dataclasses.dataclass(frozen=True)
class ChatTemplate:
  """A Jinja template of the Hugging Face kind, run in a sandbox.

  Attributes:
    source: the template.
    file: where it is from; named in errors.
    bos_token: what the template knows by that name; empty if there is none.
    eos_token: the same.
  """

  source: str
  file: str
  bos_token: str = ""
  eos_token: str = ""

  def render(
    self,
    messages: Sequence[Message],
    where: str,
    add_generation_prompt: bool = False,
    fields: TemplateFields = _NO_FIELDS,
  ) -> str:
    """Returns the text of a conversation, special tokens by their names.

    Args:
      messages: `role`, `content` and whatever else the template reads.
      where: the conversation; named in errors.
      add_generation_prompt: end with what an assistant's turn begins with.
      fields: further variables, as "tools"; see `read_template_fields`. Of
        those that the template does not read, standard error says so.

    Returns:
      The text.

    Raises:
      UserError: the template is no Jinja, refuses the conversation, or writes
        what UTF-8 cannot hold.
    """
    text, _ = self._render(messages, where, fields, add_generation_prompt)
    return text

  def split(
    self,
    messages: Sequence[Message],
    where: str,
    fields: TemplateFields = _NO_FIELDS,
  ) -> tuple[tuple[str, bool], ...]:
    """Splits the text of a conversation into what is trained and what not.

    Where the template marks it ({% generation %}), what is marked is trained.
    Else it is what follows the generation prompt in each turn of the
    assistant, with what the template ends the turn with:

      <|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\n   not trained
      Hello<|im_end|>\\n                                         trained

    Args:
      messages: see `render`.
      where: the conversation; named in errors.
      fields: see `render`.

    Returns:
      (text, is it trained?) in order; the texts join to that of `render`.

    Raises:
      UserError: see `render`; a turn whose text cannot be found in the whole.
    """
    text, spans = self._render(messages, where, fields)
    if not self._compiled.environment.has_marks:
      spans = []
      for number, message in enumerate(messages):
        if message["role"] == ASSISTANT:
          least = spans[-1][1] if spans else 0
          span = self._find_turn(messages, number, text, fields)
          if span is None or span[0] < least:
            raise UserError(
              f"{where}: message {number} ({ASSISTANT}): cannot tell which "
              "text of the conversation is its; the chat template of "
              f"{self.file} leaves it out, or writes it more than once"
            )
          spans.append(span)
    parts: list[tuple[str, bool]] = []
    done = 0
    for start, end in spans:
      parts += [(text[done:start], False), (text[start:end], True)]
      done = end
    parts.append((text[done:], False))
    return tuple(part for part in parts if part[0])

  def _find_turn(
    self,
    messages: Sequence[Message],
    number: int,
    text: str,
    fields: TemplateFields,
  ) -> Span | None:
    """Finds the turn of a message in the text of the conversation.

    Args:
      messages: all of them.
      number: of the message.
      text: of all messages.
      fields: see `render`.

    Returns:
      Where the turn's trained text begins and ends; None if that is unclear.
    """
    until = messages[: number + 1]
    through = self._attempt(until, fields)
    if through is None:
      return None
    # Characters before the turn, of a text that ends with it; None where the
    # generation prompt is another than the turn's own beginning.
    prompt = self._attempt(messages[:number], fields, True)
    n_before = None
    if prompt is not None and through.startswith(prompt):
      n_before = len(prompt)
      if text.startswith(through):
        return n_before, len(through)
    # A turn may read otherwise where more follow (thoughts are left out).
    # It begins with its words, and with what leads from the prompt to them if
    # that is there, and ends as it does where it is the last turn.
    words = self._find_words(messages, number, text, fields)
    at_end = self._find_words(until, number, through, fields)
    if words is None or at_end is None:
      return None
    start, end = words
    if n_before is not None:
      lead = through[n_before : at_end[0]]
      if text[:start].endswith(lead):
        start -= len(lead)
    tail = through[at_end[1] :]
    if not text.startswith(tail, end):
      tail = self._tail_before_another(messages, number, fields) or tail
    return start, end + _n_shared(tail, text[end:])

  def _tail_before_another(
    self, messages: Sequence[Message], number: int, fields: TemplateFields
  ) -> str | None:
    """Returns what follows a message's words in its turn if a turn follows."""
    until = messages[: number + 1]
    before, prompt, followed = (
      self._attempt(messages[:number], fields),
      self._attempt(messages[:number], fields, True),
      self._attempt(until, fields, True),
    )
    if before is None or prompt is None or followed is None:
      return None
    start_of_turn = prompt.removeprefix(before)
    words = self._find_words(until, number, followed, fields, True)
    if words is None or not followed.endswith(start_of_turn):
      return None
    return followed[words[1] :].removesuffix(start_of_turn)

  def _find_words(
    self,
    messages: Sequence[Message],
    number: int,
    text: str,
    fields: TemplateFields,
    add_generation_prompt: bool = False,
  ) -> Span | None:
    """Finds where a text differs if a message says something else.

    Args:
      messages: of the text.
      number: of the message.
      text: what the template makes of the messages.
      fields: see `render`.
      add_generation_prompt: with which the text was made.

    Returns:
      Where it begins to differ and where it ceases to; None if other words are
      not there exactly once, or what stands elsewhere depends on them.
    """
    message = messages[number]
    # Some write no content beside calls of tools.
    for rest in (message, {"role": message["role"]}):
      others = [
        self._attempt(
          [
            *messages[:number],
            rest | {"content": words},
            *messages[number + 1 :],
          ],
          fields,
          add_generation_prompt,
        )
        for words in _STAND_INS
      ]
      first, second = others
      if first is None or second is None:
        continue
      is_once = first.count(_STAND_INS[0]) == 1
      if is_once and first.replace(*_STAND_INS) == second:
        start = min(_n_common(text, first), _n_common(text, second))
        n_after = min(
          _n_common(text[::-1], other[::-1]) for other in (first, second)
        )
        return start, max(start, len(text) - n_after)
    return None

  def _attempt(
    self,
    messages: Sequence[Message],
    fields: TemplateFields,
    add_generation_prompt: bool = False,
  ) -> str | None:
    """Renders a part of a conversation; None if the template refuses it."""
    try:
      return self.render(messages, "", add_generation_prompt, fields)
    except UserError:
      return None

  def _render(
    self,
    messages: Sequence[Message],
    where: str,
    fields: TemplateFields,
    add_generation_prompt: bool = False,
  ) -> tuple[str, list[Span]]:
    """Returns the text, and the spans of it that the template marks."""
    named = {
      "bos_token": self.bos_token,
      "eos_token": self.eos_token,
      "tools": None,
      "documents": None,
    }
    try:
      for name, value in fields.items():
        if value and name not in self._compiled.environment.names:
          _say_unread(self.file, name)
      text = self._compiled.render(
        named
        | dict(fields)
        | {
          "messages": list(messages),
          "add_generation_prompt": add_generation_prompt,
        }
      )
    # A template is a program of somebody else's: whatever it raises (also
    # TypeError or ZeroDivisionError) is its word on the conversation.
    except Exception as error:
      reason = " ".join(str(error).split()) or type(error).__name__
      raise UserError(
        f"{where}: the chat template of {self.file} fails: {reason}"
      ) from error
    return _unmarked(require_unicode(text, where))

  @functools.cached_property
  def _compiled(self) -> Any:
    import jinja2.ext
    import jinja2.meta
    import jinja2.nodes
    import jinja2.sandbox

    class Generation(jinja2.ext.Extension):
      """`{% generation %}` marks what an assistant says; it stays in place."""

      tags = {"generation"}

      def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        vars(self.environment)["has_marks"] = True
        body = parser.parse_statements(
          ("name:endgeneration",), drop_needle=True
        )
        first, last = (
          jinja2.nodes.Output([jinja2.nodes.TemplateData(mark)], lineno=line)
          for mark in _MARKS
        )
        return [first, *body, last]

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
      trim_blocks=True,
      lstrip_blocks=True,
      extensions=[jinja2.ext.loopcontrols, Generation],
    )
    # One moment for all conversations, or a turn would not be found again.
    now = datetime.datetime.now()

    def raise_exception(message: str) -> None:
      raise jinja2.TemplateError(message)

    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = now.strftime
    environment.filters["tojson"] = _dumped
    environment.extend(has_marks=False)
    tree = environment.parse(self.source)
    environment.extend(names=jinja2.meta.find_undeclared_variables(tree))
    return environment.from_string(tree)


# Set around what a template marks; no text has them.
_MARKS = (f"\x02{uuid.uuid4().hex}", f"\x03{uuid.uuid4().hex}")


def _unmarked(text: str) -> tuple[str, list[Span]]:
  """Takes the marks out of a text and returns where they stood."""
  spans: list[Span] = []
  clean, depth = "", 0
  pieces = re.split(f"({_MARKS[0]}|{_MARKS[1]})", text)
  for piece in pieces:
    if piece == _MARKS[0]:
      if depth == 0:
        start = len(clean)
      depth += 1
    elif piece == _MARKS[1]:
      depth -= 1
      if depth == 0 and len(clean) > start:
        if spans and spans[-1][1] == start:  # one goes on from the other
          start = spans.pop()[0]
        spans.append((start, len(clean)))
    else:
      clean += piece
  return clean, spans


def _n_common(a: str, b: str) -> int:
  """Returns how many characters two texts have in common at their heads."""
  low, high = 0, min(len(a), len(b))
  while low < high:
    middle = (low + high + 1) // 2
    if a[low:middle] == b[low:middle]:
      low = middle
    else:
      high = middle - 1
  return low


def _n_shared(end: str, text: str) -> int:
  """Returns how much of a turn's end a text begins with, in whole words."""
  n = _n_common(end, text)
  if n == len(end):
    return n
  for one in (end, text):
    for match in _WHOLE.finditer(one):
      if match.start() < n < match.end():
        n = match.start()
  return n


@functools.cache  # once
def _say_unread(file: str, name: str) -> None:
  # Standard output is for what commands are asked for.
  print(
    f"WARNING: the chat template of {file} does not read {name!r}, which "
    "conversations have: it is left out of their text",
    file=sys.stderr,
  )


def _dumped(
  value: Any,
  ensure_ascii: bool = False,
  indent: int | None = None,
  separators: tuple[str, str] | None = None,
  sort_keys: bool = False,
) -> str:
  """The filter `tojson`; Jinja's own escapes what HTML would read as a tag."""
  return json.dumps(
    value,
    ensure_ascii=ensure_ascii,
    indent=indent,
    separators=separators,
    sort_keys=sort_keys,
  )
