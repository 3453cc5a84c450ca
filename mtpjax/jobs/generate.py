"""`mtpjax generate`: continue prompts with a trained model."""

import contextlib
import json
import os
import pathlib
import sys
import time
from collections.abc import Iterator
from typing import Any, TextIO

import rich.console

from mtpjax import api, staging
from mtpjax import config as config_lib
from mtpjax.data import (
  TEMPLATE_FIELDS,
  decode_utf8,
  require_unicode,
)
from mtpjax.decode import verifiers
from mtpjax.errors import UserError
from mtpjax.jobs.prompts import read_prompts
from mtpjax.progress import Progress, print_line


def run(
  workdir: str | pathlib.Path,
  console: rich.console.Console,
  prompt: str | None = None,
  prompts: pathlib.Path | None = None,
  step: int | None = None,
  ignore_eos: bool = False,
  print_rows: bool = False,
  chat: str | None = None,
  out: pathlib.Path | None = None,
  base: str = "",
  **overrides: Any,
) -> list[dict[str, Any]]:
  """Continues one prompt, streaming, or a file of them in batches.

  Each line of `out` can be trained on: {"prompt", "completion"}, the prompt
  null where it was ids, or {"messages"} with the answer as the last; beside
  them are the generated "ids" and the "finish_reason".

  Args:
    workdir: of `mtpjax train`.
    console: gets a closing line with speed and tokens per pass.
    prompt: a text; None and neither `chat` nor `prompts` reads standard input.
    prompts: a file, see `read_prompts`.
    step: the checkpoint; None takes the latest.
    ignore_eos: go on to the budget whatever comes.
    print_rows: print what comes of a file, one JSON object per line.
    chat: what a user says; the answer is streamed.
    out: a new file for what comes of `prompts`; there when it is complete.
    base: the model that heads were trained on; see `api.load`.
    **overrides: fields of `config.Decode`.

  Returns:
    Per prompt the fields of `api.Generation`.

  Raises:
    UserError: see `mtpjax.load` and `Loaded.generate`; `out` is there, cannot
      be written, or is given without `prompts`.
  """
  if out is not None and prompts is None:
    raise UserError(
      f"--out {out}: is for what comes of a file; give --prompts FILE too"
    )
  # Before anything is loaded: what cannot be kept is not worth its time.
  api.override_settings(config_lib.Config(), overrides)
  with contextlib.nullcontext() if out is None else _new_file(out) as file:
    records = None if prompts is None else read_prompts(prompts)
    with Progress(console, f"loading {workdir}"):
      loaded = api.load(workdir, step, base=base)
    settings = overrides | {"ignore_eos": ignore_eos}
    if records is None:
      asked, shown = _one_prompt(prompt, chat, console)
      start = time.monotonic()
      generations, reached = _stream(loaded, asked, shown, console, settings)
    else:
      start = time.monotonic()
      generations, reached = _batches(loaded, records, console, settings)
    secs = time.monotonic() - start
    if file is not None and records is not None:
      with _explained(out):
        for record, generation in zip(records, generations, strict=True):
          line = _trainable(record, generation)
          file.write(json.dumps(line) + "\n")
        file.flush()
  rows = [vars(generation) for generation in generations]
  if prompts is not None and print_rows:
    for row in rows:
      print(json.dumps(row))
  seeds = {
    generation.seed
    for record, generation in zip(records or [{}], generations, strict=True)
    if "seed" not in record
  } - {None}
  notes = [f"{secs:.1f} s in all, with compilation"]
  notes += [f"seed {seed}" for seed in seeds]
  verifier = overrides.get("verifier", loaded.config.decode.verifier)
  settings_of = config_lib.Decode(verifier=verifier)
  if not verifiers.of(settings_of).is_lossless:
    notes.append(f"verifier {verifier} is LOSSY")
  n_prompts = f"{len(rows)} prompt{'' if len(rows) == 1 else 's'}"
  print_line(
    console,
    "; ".join([f"{n_prompts}, {api.speed(generations, reached)}", *notes]),
  )
  return rows


def _stream(
  loaded: api.Loaded,
  asked: api.Prompt,
  shown: str,
  console: rich.console.Console,
  settings: dict[str, Any],
) -> tuple[list[api.Generation], api.Decoding | None]:
  """Prints the text of a prompt as it comes, after what is `shown` before."""
  reached: api.Decoding | None = None
  with contextlib.ExitStack() as status:
    status.enter_context(Progress(console, "compiling"))

    def on_progress(now: api.Decoding) -> None:
      nonlocal reached
      if reached is None:
        # From here on the line is the text's.
        status.close()
        sys.stdout.write(shown)
      reached = now

    try:
      generations = loaded.generate(
        asked, on_text=_print_piece, on_progress=on_progress, **settings
      )
    finally:
      # What has come stays, and whatever is said of its end has its own line.
      if reached is not None:
        sys.stdout.write("\n")
        sys.stdout.flush()
  return generations, reached


def _print_piece(index: int, piece: str) -> None:
  sys.stdout.write(piece)
  sys.stdout.flush()


def _batches(
  loaded: api.Loaded,
  records: list[dict[str, Any]],
  console: rich.console.Console,
  settings: dict[str, Any],
) -> tuple[list[api.Generation], api.Decoding | None]:
  """Continues the prompts of a file; shows how many of them are done."""
  reached: api.Decoding | None = None
  with Progress(console, "compiling", len(records)) as progress:

    def on_progress(now: api.Decoding) -> None:
      nonlocal reached
      reached = now
      progress.update(now.done, f"decoding, {now.tokens:,} tokens")

    generations = loaded.generate(records, on_progress=on_progress, **settings)
  return generations, reached


def _one_prompt(
  prompt: str | None, chat: str | None, console: rich.console.Console
) -> tuple[api.Prompt, str]:
  """Returns the one prompt, and what is shown of it: a text is."""
  if chat is not None:
    content = require_unicode(chat, "--chat")
    return {"messages": [{"role": "user", "content": content}]}, ""
  if prompt is not None:
    text = require_unicode(prompt, "--prompt")
    return text, text
  if sys.stdin.isatty():
    console.print("reading a prompt; Ctrl-D on a line of its own ends it")
  text = decode_utf8(sys.stdin.buffer.read(), "standard input")
  return text, text


def _trainable(
  record: dict[str, Any], generation: api.Generation
) -> dict[str, Any]:
  """Returns a line of `--out`."""
  rest = {"ids": generation.ids, "finish_reason": generation.finish_reason}
  if record.get("messages") is not None:
    answer = {"role": "assistant", "content": generation.text}
    given = {name: record[name] for name in TEMPLATE_FIELDS if name in record}
    return {"messages": [*record["messages"], answer]} | given | rest
  return {
    "prompt": record.get("text"), "completion": generation.text
  } | rest  # fmt: skip


@contextlib.contextmanager
def _new_file(out: pathlib.Path) -> Iterator[TextIO]:
  """Opens a file that has its name once it is complete, and else is gone."""
  if os.path.lexists(out):
    raise UserError(
      f"--out {out}: is there already; give another name or delete it"
    )
  with contextlib.ExitStack() as stack:
    with _explained(out):
      part = stack.enter_context(staging.whole_file(out))
      file = stack.enter_context(open(part, "w", encoding="utf-8"))
    yield file


@contextlib.contextmanager
def _explained(out: pathlib.Path | None) -> Iterator[None]:
  """Raises UserError where `--out` cannot be written."""
  try:
    yield
  except OSError as error:
    raise UserError(
      f"--out {out}: cannot be written there ({error.strerror}); give a file "
      "of a folder that is there and can be written to"
    ) from error
