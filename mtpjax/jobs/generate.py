"""`mtpjax generate`: continue prompts with a trained model."""

import contextlib
import json
import os
import pathlib
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

import rich.console

from mtpjax import api
from mtpjax.data import (
  TEMPLATE_FIELDS,
  decode_utf8,
  read_messages,
  require_unicode,
)
from mtpjax.errors import UserError


def read_prompts(path: pathlib.Path) -> list[dict[str, Any]]:
  """Reads a JSON Lines file whose objects have `text`, `ids` or `messages`.

  An object may have settings of its own too, see `Loaded.generate`.

  Args:
    path: the file.

  Returns:
    The objects, in order.

  Raises:
    UserError: no such file, it is not UTF-8, or a line has no prompt; names
      the byte or the line.
  """
  if not path.is_file():
    raise UserError(f"prompts {path}: no such file")
  prompts: list[dict[str, Any]] = []
  text = decode_utf8(path.read_bytes(), f"prompts {path}")
  # JSON may hold what `splitlines` takes for the end of a line, as U+2028.
  for number, line in enumerate(text.split("\n"), start=1):
    if not line.strip():
      continue
    where = f"prompts {path}:{number}"
    try:
      record = json.loads(line)
    except json.JSONDecodeError as error:
      raise UserError(f"{where}: not valid JSON ({error})") from error
    except (ValueError, RecursionError) as error:
      raise UserError(
        f"{where}: has a number or a nesting out of all measure"
      ) from error
    prompts.append(_prompt_of(record, where))
  if not prompts:
    raise UserError(f"prompts {path}: has no prompts")
  return prompts


def _prompt_of(record: Any, where: str) -> dict[str, Any]:
  if isinstance(record, dict):
    text, ids = record.get("text"), record.get("ids")
    if isinstance(text, str):
      return record | {"text": require_unicode(text, where)}
    if isinstance(ids, list) and all(isinstance(i, int) for i in ids):
      return record
    if record.get("messages") is not None:
      return record | {"messages": read_messages(record["messages"], where)}
  raise UserError(
    f'{where}: needs "text" (a string), "ids" (a list of integers) or '
    '"messages" (of a chat)'
  )


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
  with contextlib.nullcontext() if out is None else _new_file(out) as file:
    records = None if prompts is None else read_prompts(prompts)
    loaded = api.load(workdir, step, base=base)
    asked: Sequence[api.Prompt]
    on_text = None
    if records is None:
      asked = [_one_prompt(prompt, chat)]

      def on_text(index: int, piece: str) -> None:
        sys.stdout.write(piece)
        sys.stdout.flush()
    else:
      asked = records
    start = time.monotonic()
    generations = loaded.generate(asked, ignore_eos, on_text, **overrides)
    secs = time.monotonic() - start
    if records is None:
      sys.stdout.write("\n")
    if file is not None and records is not None:
      for record, generation in zip(records, generations, strict=True):
        line = _trainable(record, generation)
        file.write(json.dumps(line) + "\n")
  rows = [vars(generation) for generation in generations]
  if prompts is not None and print_rows:
    for row in rows:
      print(json.dumps(row))
  tokens = sum(len(row["ids"]) for row in rows)
  passes = sum(row["passes"] for row in rows)
  lossy = "; verifier typical is LOSSY" if _is_lossy(loaded, overrides) else ""
  console.print(
    f"{len(rows)} prompts, {tokens} tokens, {tokens / passes:.2f} tokens per "
    f"pass, {secs:.1f} s with compilation{lossy}",
    highlight=False,
  )
  return rows


def _one_prompt(prompt: str | None, chat: str | None) -> api.Prompt:
  """Returns the one prompt; shows a text, which is continued in place."""
  if chat is not None:
    content = require_unicode(chat, "--chat")
    return {"messages": [{"role": "user", "content": content}]}
  if prompt is None:
    text = decode_utf8(sys.stdin.buffer.read(), "standard input")
  else:
    text = require_unicode(prompt, "--prompt")
  sys.stdout.write(text)
  return text


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
  part = out.with_name(f"{out.name}.part-{os.getpid()}")
  try:
    file = open(part, "w", encoding="utf-8")
  except OSError as error:
    raise UserError(
      f"--out {out}: cannot be written there ({error.strerror}); give a file "
      "of a folder that is there and can be written to"
    ) from error
  try:
    with file:
      yield file
    part.rename(out)
  finally:
    part.unlink(missing_ok=True)


def _is_lossy(loaded: api.Loaded, overrides: dict[str, Any]) -> bool:
  return overrides.get("verifier", loaded.config.decode.verifier) == "typical"
