"""`mtpjax generate`: continue prompts with a trained model."""

import json
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import Any

import rich.console

from mtpjax import api
from mtpjax.data import decode_utf8, require_unicode
from mtpjax.errors import UserError


def read_prompts(path: pathlib.Path) -> list[dict[str, Any]]:
  """Reads a JSON Lines file whose objects have `text` or `ids`.

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
  raise UserError(
    f'{where}: needs "text" (a string) or "ids" (a list of integers)'
  )


def run(
  workdir: str | pathlib.Path,
  console: rich.console.Console,
  prompt: str | None = None,
  prompts: pathlib.Path | None = None,
  step: int | None = None,
  ignore_eos: bool = False,
  print_rows: bool = False,
  **overrides: Any,
) -> list[dict[str, Any]]:
  """Continues one prompt, streaming, or a file of them in batches.

  Args:
    workdir: of `mtpjax train`.
    console: gets a closing line with speed and tokens per pass.
    prompt: a text; None and no `prompts` reads standard input.
    prompts: a file, see `read_prompts`.
    step: the checkpoint; None takes the latest.
    ignore_eos: go on to the budget whatever comes.
    print_rows: print what comes of a file, one JSON object per line.
    **overrides: fields of `config.Decode`.

  Returns:
    Per prompt the fields of `api.Generation`.

  Raises:
    UserError: see `mtpjax.load` and `Loaded.generate`.
  """
  loaded = api.load(workdir, step)
  texts: Sequence[api.Prompt]
  on_text = None
  if prompts is None:
    if prompt is None:
      text = decode_utf8(sys.stdin.buffer.read(), "standard input")
    else:
      text = require_unicode(prompt, "--prompt")
    texts = [text]
    sys.stdout.write(text)

    def on_text(index: int, piece: str) -> None:
      sys.stdout.write(piece)
      sys.stdout.flush()
  else:
    texts = read_prompts(prompts)
  start = time.monotonic()
  generations = loaded.generate(texts, ignore_eos, on_text, **overrides)
  secs = time.monotonic() - start
  if prompts is None:
    sys.stdout.write("\n")
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


def _is_lossy(loaded: api.Loaded, overrides: dict[str, Any]) -> bool:
  return overrides.get("verifier", loaded.config.decode.verifier) == "typical"
