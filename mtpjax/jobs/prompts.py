"""Files of prompts, as commands read them."""

import json
import pathlib
from collections.abc import Sequence
from typing import Any, cast

from mtpjax.api.prompts import read_record
from mtpjax.data import decode_utf8
from mtpjax.errors import UserError

_DEFAULT_CLASS = "prompts"


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
  try:
    raw = path.read_bytes()
  except FileNotFoundError as error:
    raise UserError(f"prompts {path}: no such file") from error
  except (OSError, ValueError) as error:  # a folder, not ours to read, ...
    reason = getattr(error, "strerror", None) or error
    raise UserError(
      f"prompts {path}: cannot be read ({reason}); give a JSON Lines file"
    ) from error
  prompts: list[dict[str, Any]] = []
  text = decode_utf8(raw, f"prompts {path}")
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
        f"{where}: has a number too long, or is nested too deeply"
      ) from error
    if not isinstance(record, dict):
      raise UserError(
        f'{where}: needs an object with "text" (a string), "ids" (a list of '
        'integers) or "messages" (of a chat)'
      )
    read_record(record, where)
    prompts.append(record)
  if not prompts:
    raise UserError(f"prompts {path}: has no prompts")
  return prompts


def read_class_prompts(
  path: pathlib.Path,
) -> dict[str, list[str | Sequence[int]]]:
  """Reads a file of prompts whose objects may have a `class`.

  Args:
    path: see `read_prompts`.

  Returns:
    The texts or ids of each class, "prompts" where none is given.

  Raises:
    UserError: see `read_prompts`; a class that is no text, or settings, which
      are those of the bench here.
  """
  classes: dict[str, list[str | Sequence[int]]] = {}
  for number, prompt in enumerate(read_prompts(path), start=1):
    where = f"prompts {path}, prompt {number}"
    record = read_record(prompt, where)
    kind = prompt.get("class", _DEFAULT_CLASS)
    if not kind or not kind.strip():
      raise UserError(f'{where}: "class" must be a name, not {kind!r}')
    other = [*record.settings, *({"messages"} & prompt.keys())]
    if other:
      raise UserError(
        f'{where}: has {other[0]!r}; what a bench reads is "text" or "ids", '
        'and "class"'
      )
    classes.setdefault(kind, []).append(cast(Any, record.content))
  return classes
