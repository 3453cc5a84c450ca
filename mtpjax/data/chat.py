"""Chat templates: the text of a conversation, and which of it is trained."""

import dataclasses
import datetime
import functools
import json
from collections.abc import Sequence
from typing import Any

from mtpjax.data.document import ASSISTANT, Message, require_unicode
from mtpjax.errors import UserError


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
  ) -> str:
    """Returns the text of a conversation, special tokens by their names.

    Args:
      messages: `role`, `content` and whatever else the template reads.
      where: the conversation; named in errors.
      add_generation_prompt: end with what an assistant's turn begins with.

    Returns:
      The text.

    Raises:
      UserError: the template is no Jinja, refuses the conversation, or writes
        what UTF-8 cannot hold.
    """
    try:
      text = self._compiled.render(
        messages=list(messages),
        add_generation_prompt=add_generation_prompt,
        bos_token=self.bos_token,
        eos_token=self.eos_token,
        tools=None,
      )
    # A template is a program of somebody else's: whatever it raises (also
    # TypeError or ZeroDivisionError) is its word on the conversation.
    except Exception as error:
      reason = " ".join(str(error).split()) or type(error).__name__
      raise UserError(
        f"{where}: the chat template of {self.file} fails: {reason}"
      ) from error
    return require_unicode(text, where)

  def split(
    self, messages: Sequence[Message], where: str
  ) -> tuple[tuple[str, bool], ...]:
    """Splits the text of a conversation into what is trained and what not.

    Trained is what follows the generation prompt in each turn of the
    assistant, with what the template ends the turn with:

      <|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\n   not trained
      Hello<|im_end|>\\n                                         trained

    Args:
      messages: see `render`.
      where: the conversation; named in errors.

    Returns:
      (text, is it trained?) in order; the texts join to that of `render`.

    Raises:
      UserError: see `render`; a turn that the template writes otherwise
        within the conversation than at its end.
    """
    text = self.render(messages, where)
    parts: list[tuple[str, bool]] = []
    done = 0
    for number, message in enumerate(messages):
      if message["role"] != ASSISTANT:
        continue
      span = self._find_turn(messages[: number + 1], text, done)
      if span is None:
        raise UserError(
          f"{where}: message {number} ({ASSISTANT}): cannot tell which text "
          f"of the conversation is its; the chat template of {self.file} "
          "writes it otherwise when messages follow"
        )
      start, end = span
      parts += [(text[done:start], False), (text[start:end], True)]
      done = end
    parts.append((text[done:], False))
    return tuple(part for part in parts if part[0])

  def _find_turn(
    self, messages: Sequence[Message], text: str, least: int
  ) -> tuple[int, int] | None:
    """Finds the last of the messages in the text of the conversation.

    Args:
      messages: up to the turn.
      text: of the whole conversation.
      least: where the turn before ends.

    Returns:
      Where the turn's trained text begins and ends; None if it can't be told.
    """
    before, content = messages[:-1], messages[-1]["content"].strip()
    through = self._attempt(messages)
    prompt = self._attempt(before, add_generation_prompt=True)
    if through is None:
      return None
    if prompt is not None and through.startswith(prompt):
      if text.startswith(through) and len(prompt) >= least:
        return len(prompt), len(through)
    # The generation prompt is another than the turn's own beginning, or a
    # turn reads otherwise once more turns follow (thoughts are left out).
    # Then it is what stands behind the turns before: from its content on.
    history = self._attempt(before)
    if history is None and not before:
      history = ""
    if history is None or not (
      through.startswith(history) and text.startswith(history)
    ):
      return None
    added = through[len(history) :]
    if not content or added.count(content) != 1:
      return None
    turn = added[added.index(content) :]
    start = text.find(turn, max(least, len(history)))
    return None if start < 0 else (start, start + len(turn))

  def _attempt(
    self, messages: Sequence[Message], add_generation_prompt: bool = False
  ) -> str | None:
    """Renders a part of a conversation; None if the template refuses it."""
    try:
      return self.render(messages, "", add_generation_prompt)
    except UserError:
      return None

  @functools.cached_property
  def _compiled(self) -> Any:
    import jinja2.ext
    import jinja2.sandbox

    class Generation(jinja2.ext.Extension):
      """`{% generation %}` marks what an assistant says; it stays in place."""

      tags = {"generation"}

      def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(
          ("name:endgeneration",), drop_needle=True
        )

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
    return environment.from_string(self.source)


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
