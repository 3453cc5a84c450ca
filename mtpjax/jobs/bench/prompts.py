"""Prompts that `mtpjax bench decode` is run on, by class."""

import pathlib
from collections.abc import Sequence

from mtpjax import api
from mtpjax.decode import Request
from mtpjax.evals import PROMPT_CLASSES, class_requests, held_out_requests
from mtpjax.evals.prompts import HELD_OUT
from mtpjax.jobs.prompts import read_class_prompts

CLASSES = (*PROMPT_CLASSES, HELD_OUT)
_HELD_OUT_PROMPTS = 4


def trained_requests(
  loaded: api.Loaded,
  classes: Sequence[str],
  file: pathlib.Path | None,
  batch: int,
  prompt_length: int,
  new_tokens: int,
  temperature: float,
  data_path: str = "",
) -> list[Request]:
  """Makes requests for a trained model.

  Args:
    loaded: the model and its tokenizer.
    classes: of `CLASSES`.
    file: prompts of one's own, see `read_class_prompts`; their classes come
      last, and join those of the same name.
    batch: rows decoded together; at least so many held-out rows are taken.
    prompt_length: tokens of a held-out prompt.
    new_tokens: tokens to generate.
    temperature: 0 is greedy.
    data_path: prepared rows; empty takes those of the run.

  Returns:
    The requests, class by class.

  Raises:
    UserError: no rows to take prompts from, a bad file, a prompt without
      tokens.
  """
  prompts: dict[str, list[list[int]]] = {}
  for kind in classes:
    if kind == HELD_OUT:
      rows = loaded.open_rows("validation", data_path)
      requests = held_out_requests(
        rows, max(batch, _HELD_OUT_PROMPTS), prompt_length, new_tokens,
        loaded.missing_ids,
      )  # fmt: skip
      prompts[kind] = [list(request.ids) for request in requests]
    else:
      prompts[kind] = [
        loaded.encode(prompt, f"class {kind}")
        for prompt in PROMPT_CLASSES[kind]
      ]
  if file is not None:
    for kind, own in read_class_prompts(file).items():
      prompts.setdefault(kind, []).extend(map(loaded.encode, own))
  return class_requests(prompts, new_tokens, loaded.missing_ids, temperature)
