"""Requests made of held-out rows."""

import numpy as np

from mtpjax.data import Rows
from mtpjax.decode import Request
from mtpjax.errors import UserError


def held_out_requests(
  rows: Rows,
  n: int,
  prompt_length: int,
  new_tokens: int,
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
    temperature: 0 is greedy.
    seed: of the noise.

  Returns:
    n requests, from rows spread over the whole split, the same ones each time.

  Raises:
    UserError: the prompts are longer than the rows, or too few rows are long
      enough.
  """
  if prompt_length > rows.row_length:
    raise UserError(
      f"prompt length: {prompt_length} is more than the {rows.row_length} "
      f"tokens of a row of {rows.path}"
    )
  requests: list[Request] = []
  for i in np.random.default_rng(0).permutation(len(rows)):
    if len(requests) == n:
      break
    row = rows[i]
    if (row["segments"][:prompt_length] == row["segments"][0]).all():
      ids = tuple(row["tokens"][:prompt_length].tolist())
      requests.append(
        Request(ids, new_tokens, temperature, seed, len(requests))
      )
  if len(requests) < n:
    raise UserError(
      f"held-out prompts: only {len(requests)} rows of {rows.path} begin with "
      f"{prompt_length} tokens of one document, {n} are asked for"
    )
  return requests
