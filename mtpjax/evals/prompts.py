"""Requests made of held-out rows, and of prompts in classes."""

from collections.abc import Mapping, Sequence

import numpy as np

from mtpjax.data import Rows
from mtpjax.decode import Request
from mtpjax.errors import UserError

HELD_OUT = "held-out"


def held_out_requests(
  rows: Rows,
  n: int,
  prompt_length: int,
  new_tokens: int,
  missing_ids: frozenset[int],
  temperature: float = 0.0,
  seed: int = 0,
) -> list[Request]:
  """Takes the beginnings of rows as prompts.

  Args:
    rows: held-out rows.
    n: how many requests.
    prompt_length: tokens of a prompt; rows whose first document is shorter
      are passed over.
    new_tokens: tokens to generate.
    missing_ids: see `decode.Request`.
    temperature: 0 is greedy.
    seed: of the noise.

  Returns:
    n requests of the class "held-out", from rows spread over the whole split,
    the same ones each time.

  Raises:
    UserError: the prompts are longer than the rows, or too few rows are long
      enough.
  """
  if prompt_length > rows.row_length:
    raise UserError(
      f"prompt length: {prompt_length} is more than the {rows.row_length} "
      f"tokens of a row of {rows.path}"
    )
  prompts: list[tuple[int, ...]] = []
  for i in np.random.default_rng(0).permutation(len(rows)):
    if len(prompts) == n:
      break
    row = rows[i]
    if (row["segments"][:prompt_length] == row["segments"][0]).all():
      prompts.append(tuple(row["tokens"][:prompt_length].tolist()))
  if len(prompts) < n:
    raise UserError(
      f"held-out prompts: only {len(prompts)} rows of {rows.path} begin with "
      f"{prompt_length} tokens of one document, {n} are asked for; take rows "
      "of more or longer documents (--data-path)"
    )
  return class_requests(
    {HELD_OUT: prompts}, new_tokens, missing_ids, temperature, seed
  )


def class_requests(
  prompts: Mapping[str, Sequence[Sequence[int]]],
  new_tokens: int,
  missing_ids: frozenset[int],
  temperature: float = 0.0,
  seed: int = 0,
) -> list[Request]:
  """Makes requests of prompts in classes.

  Args:
    prompts: ids of the prompts of each class.
    new_tokens: tokens to generate.
    missing_ids: see `decode.Request`.
    temperature: 0 is greedy.
    seed: of the noise.

  Returns:
    The requests, class by class; those of a class differ in their noise.
  """
  return [
    Request(
      tuple(ids), new_tokens, temperature=temperature, seed=seed, index=index,
      missing_ids=missing_ids, kind=kind,
    )
    for kind, own in prompts.items()
    for index, ids in enumerate(own)
  ]  # fmt: skip
