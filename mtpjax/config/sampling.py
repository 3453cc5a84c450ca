"""Numbers that a request may give for how its tokens are chosen.

Each is stated here once: name, type, neutral value, help and range. The section
`decode` of an experiment, the command line, prompts, the library and the
requests of the decoder all have these fields by inheritance.
"""

import dataclasses
from typing import Any

LARGEST_INT = 2**31 - 1
# The logits are float32. Within these bounds penalties, biases and temperature
# keep them finite whatever text comes: 1e24 times 2^24 tokens over 1e-6 is.
SMALLEST, LARGEST = 1e-6, 1e24


@dataclasses.dataclass(frozen=True)
class Range:
  """Which values a number may have.

  Attributes:
    least: the smallest.
    most: the largest.
    is_below: `most` itself is out of range.
    has_zero: 0 is in range, too.
    hint: what an error says beside the range.
  """

  least: float = 0
  most: float = LARGEST_INT
  is_below: bool = False
  has_zero: bool = False
  hint: str = ""

  def problem(self, value: float) -> str:
    """Returns what is wrong with a value, as "must be ..."; "" if nothing."""
    is_in = self.least <= value <= self.most  # not for NaN
    if (is_in and not (self.is_below and value == self.most)) or (
      self.has_zero and value == 0
    ):
      return ""
    most = "below " * self.is_below + _shown(self.most)
    hint = f"; {self.hint}" if self.hint else ""
    return f"must be from {_shown(self.least)} to {most}{hint}"


def _shown(bound: float) -> str:
  return str(bound) if isinstance(bound, int) else f"{bound:g}"


def number(default: Any, help: str, range: Range) -> Any:
  """Makes a field of `Sampling`.

  Args:
    default: the neutral value, which changes nothing.
    help: one line for the command line.
    range: its values.

  Returns:
    The field.
  """
  return dataclasses.field(
    default=default,
    metadata={
      # How a run is decoded never makes it another run.
      "help": help, "may_change": True, "per_request": True, "range": range,
    },
  )  # fmt: skip


_PENALTY = Range(-LARGEST, LARGEST, hint="0 is none")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling:
  """The numbers, each with its neutral value."""

  temperature: float = number(
    0.0,
    "0 is greedy",
    Range(SMALLEST, LARGEST, has_zero=True, hint="use 0 for greedy"),
  )
  top_k: int = number(
    0, "sample from the k likeliest tokens; 0 is all", Range()
  )
  top_p: float = number(
    1.0,
    "sample from the likeliest tokens that hold so much probability",
    Range(SMALLEST, 1),
  )
  min_p: float = number(
    0.0,
    "sample from tokens of so much of the likeliest's probability",
    Range(0, 1, is_below=True),
  )
  repetition_penalty: float = number(
    1.0,
    "divides positive logits, and multiplies negative ones, of tokens that "
    "prompt or text have",
    Range(SMALLEST, LARGEST, hint="1 is none"),
  )
  frequency_penalty: float = number(
    0.0, "subtracted for each time the text has the token", _PENALTY
  )
  presence_penalty: float = number(
    0.0, "subtracted where the text has the token", _PENALTY
  )
  min_new_tokens: int = number(
    0,
    "tokens before which no text ends: EOS and stop_ids are not generated, "
    "stop strings ignored",
    Range(),
  )
  seed: int = number(
    0,
    "with the position, all there is to randomness; where none is given, or an "
    "experiment says 0, each call takes a new one",
    Range(),
  )

  def out_of_range(self) -> tuple[str, Any, str] | None:
    """Returns (name, value, "must be ...") of a bad number; None without."""
    for each in dataclasses.fields(self):
      value = getattr(self, each.name)
      problem = "range" in each.metadata and each.metadata["range"].problem(
        value
      )
      if problem:
        return each.name, value, problem
    return None


NUMBERS = {each.name: each for each in dataclasses.fields(Sampling)}
