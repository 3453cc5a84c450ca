"""`mtpjax chat`: talk with a model that stays loaded."""

import contextlib
import dataclasses
import pathlib
import shlex
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import rich.console

from mtpjax import api
from mtpjax import config as config_lib
from mtpjax.data import decode_utf8, require_chat_template, require_unicode
from mtpjax.decode.buckets import LEAST_TOKENS, bucket
from mtpjax.errors import UserError
from mtpjax.progress import Progress, print_line

_HELP = """\
/reset                  forget what was said
/settings               show how answers are decoded
/set NAME VALUE         set one of them, or several: /set mode=tree tree=4,2,1
/unset NAME             back to what the command was started with
/help                   this
/exit                   leave, as Ctrl-D does; Ctrl-C stops an answer"""
# Of a text, its answer included; doubled when it is full. Programs are compiled
# for so much room, and not anew with every line.
_ROOM = 1024


def run(
  workdir: str | pathlib.Path,
  console: rich.console.Console,
  step: int | None = None,
  settings: Mapping[str, Any] | None = None,
  base: str = "",
) -> None:
  """Answers lines of standard input until it ends.

  Args:
    workdir: of a model with a chat template.
    console: gets all but the answers, which go to standard output.
    step: the checkpoint; None takes the latest.
    settings: fields of `config.Decode`, by name.
    base: the model that heads were trained on; see `api.load`.

  Raises:
    UserError: the model cannot be loaded or has no chat template, a setting
      that is unknown or out of range, or standard input is not UTF-8. What is
      wrong with a line is said, and the next one is read.
  """
  with Progress(console, f"loading {workdir}"):
    loaded = api.load(workdir, step, base=base)
  chat = Chat(loaded, console, settings or {})
  if sys.stdin.isatty():
    chat.say(f"{workdir}, step {loaded.step}, {chat.drafts()}; /help")
  for line in _lines(chat):
    if line.strip() == "/exit":
      return
    try:
      chat.take(line)
    except UserError as error:
      chat.say(f"error: {error}")


def _lines(chat: "Chat") -> Iterator[str]:
  """Yields the lines of standard input, without what ends them."""
  if not sys.stdin.isatty():
    for raw in sys.stdin.buffer:
      try:
        yield decode_utf8(raw, "standard input").rstrip("\r\n")
      except UserError as error:
        chat.say(f"error: {error}")
    return
  with contextlib.suppress(ImportError):
    import readline  # noqa: F401  # lines can be edited, and come again
  is_leaving = False
  while True:
    try:
      line = input("> ")
    except EOFError:
      chat.say("")
      return
    except UnicodeDecodeError as error:
      chat.say(f"error: standard input: {error}")
      continue
    except KeyboardInterrupt:
      if is_leaving:
        raise
      is_leaving = True
      chat.say("\nCtrl-C again, Ctrl-D or /exit leaves")
      continue
    is_leaving = False
    yield line


class Chat:
  """A conversation, and how it is decoded."""

  def __init__(
    self,
    loaded: api.Loaded,
    console: rich.console.Console,
    settings: Mapping[str, Any],
  ):
    """Begins without a word.

    Args:
      loaded: the model.
      console: see `run`.
      settings: see `run`.

    Raises:
      UserError: see `run`.
    """
    require_chat_template(loaded.tokenizer, str(loaded.workdir))
    self._loaded = loaded
    self._console = console
    self._given = dict(settings)
    self._settings = dict(settings)
    self._messages: list[dict[str, str]] = []
    self._room = _ROOM
    self._decode()

  def say(self, text: str) -> None:
    """Prints what is no answer."""
    print_line(self._console, text)

  def drafts(self) -> str:
    """Returns which drafts are in use."""
    settings = self._decode()
    return f"mode {settings.mode}" + (
      f" {settings.tree}" if settings.tree else ""
    )

  def take(self, line: str) -> None:
    """Answers a line, or does what it says.

    Raises:
      UserError: it cannot be; nothing has changed.
    """
    if not line.startswith("/"):
      if line.strip():
        self._answer(require_unicode(line, "standard input"))
      return
    name, _, rest = line[1:].strip().partition(" ")
    commands = {
      "help": lambda: self.say(_HELP),
      "reset": self._reset,
      "settings": lambda: self._set(rest) if rest.strip() else self._show(),
      "set": lambda: self._set(rest),
      "unset": lambda: self._unset(rest.strip()),
    }
    if name not in commands:
      close = config_lib.nearest(name, [*commands, "exit"])
      raise UserError(
        f"/{name}: no such command{close}; /help lists them, and a space in "
        "front makes it a message"
      )
    commands[name]()

  def _reset(self) -> None:
    self._messages = []
    self._room = _ROOM

  def _decode(self, settings: Mapping[str, Any] | None = None) -> Any:
    own = self._settings if settings is None else settings
    return api.override_settings(self._loaded.config, own).decode

  def _show(self) -> None:
    for name, value in dataclasses.asdict(self._decode()).items():
      mark = "  (set)" if name in self._settings else ""
      self.say(f"{name} {config_lib.shown(value)}{mark}")

  def _set(self, text: str) -> None:
    name, _, value = text.strip().partition(" ")
    if "=" in name:
      try:
        words = shlex.split(text)
      except ValueError as error:
        raise UserError(f"/set {text}: {error}") from error
      pairs = [word.partition("=")[::2] for word in words]
    else:
      pairs = [(name, value.strip())]
    if not all(name and value for name, value in pairs):
      raise UserError(
        f"/set {text}: needs a name and a value, as /set temperature 0.7"
      )
    given = {name.replace("-", "_"): value for name, value in pairs}
    settings = self._settings | given
    if "mode" in given:
      # They belong to the mode that was.
      for name in {"tree", "draft_length"} - given.keys():
        settings.pop(name, None)
    decode = self._decode(settings)
    self._settings = settings
    for name in given:
      self.say(f"{name} {config_lib.shown(getattr(decode, name))}")

  def _unset(self, name: str) -> None:
    if not name:
      raise UserError("/unset: needs a name, as /unset temperature")
    name = name.replace("-", "_")
    settings = {k: v for k, v in self._settings.items() if k != name}
    if name in self._given:
      settings[name] = self._given[name]
    # To know a name that is none.
    decode = self._decode(settings)
    if not hasattr(decode, name):
      self._decode({name: ""})
    self._settings = settings
    self.say(f"{name} {config_lib.shown(getattr(decode, name))}")

  def _answer(self, line: str) -> None:
    """Streams an answer; what Ctrl-C leaves of it belongs to the history."""
    messages = [*self._messages, {"role": "user", "content": line}]
    self._make_room(messages)
    pieces: list[str] = []
    reached: api.Decoding | None = None
    generations: list[api.Generation] = []
    with contextlib.ExitStack() as status:
      status.enter_context(Progress(self._console, "compiling"))

      def on_progress(now: api.Decoding) -> None:
        nonlocal reached
        status.close()
        reached = now

      def on_text(index: int, piece: str) -> None:
        pieces.append(piece)
        sys.stdout.write(piece)
        sys.stdout.flush()

      try:
        generations = self._loaded.generate(
          {"messages": messages},
          on_text=on_text,
          on_progress=on_progress,
          capacity=self._room,
          **self._settings,
        )
      except KeyboardInterrupt:
        pass
    text = generations[0].text if generations else "".join(pieces)
    if generations or pieces:
      sys.stdout.write("\n")
      sys.stdout.flush()
      answer = {"role": "assistant", "content": text}
      self._messages = [*messages, answer]
    self.say(self._closing(generations, reached))

  def _make_room(self, messages: list[dict[str, str]]) -> None:
    """Doubles the room until messages and an answer fit."""
    settings = self._decode()
    n = len(self._loaded.encode(messages))
    if settings.cache_tokens and n >= settings.cache_tokens:
      raise UserError(
        f"{n} tokens of conversation leave no room in cache_tokens = "
        f"{settings.cache_tokens}; /reset forgets it, /set cache_tokens raises "
        "it"
      )
    needed = sum(bucket(k, LEAST_TOKENS) for k in (n, settings.max_new_tokens))
    while self._room < needed:
      self._room *= 2

  def _closing(
    self, generations: list[api.Generation], reached: api.Decoding | None
  ) -> str:
    if not generations:
      return f"[stopped; {self.drafts()}]"
    [generation] = generations
    parts = [self.drafts(), api.speed(generations, reached)]
    if generation.proposed:
      parts.append(
        f"{generation.accepted} of {generation.proposed} drafts taken"
      )
    if generation.seed is not None:
      parts.append(f"seed {generation.seed}")
    if generation.finish_reason == "length":
      parts.append("cut by max_new_tokens or cache_tokens")
    return f"[{'; '.join(parts)}]"
