"""Tokens per pass: what drafts are worth, counted one way everywhere."""

from collections.abc import Iterable, Sequence
from typing import Protocol


class Counted(Protocol):
  """A text that was decoded: `Result`, `api.Generation`."""

  @property
  def ids(self) -> Sequence[int]:
    """Tokens that are left after the end of the text was found."""

  @property
  def passes(self) -> int:
    """Trunk passes that committed them, the prompt's own included."""


def committed(texts: Iterable[Counted]) -> tuple[int, int]:
  """Returns tokens and trunk passes, without the prompts' own.

  The pass over a prompt commits one token, whatever is drafted: neither says
  anything of drafts.

  Args:
    texts: as they are after truncation at EOS, stop and budget.

  Returns:
    Committed tokens, and the passes that committed them; 0, 0 for texts of
    one token.
  """
  texts = list(texts)
  return (
    sum(len(text.ids) - 1 for text in texts),
    sum(text.passes - 1 for text in texts),
  )


def tokens_per_pass(texts: Iterable[Counted]) -> float | None:
  """Returns committed tokens over trunk passes; see `committed`.

  Example: a prompt is run, then passes commit 3, 1 and 2 tokens, of which the
  budget leaves 1 of the last: 1 + 3 + 1 + 1 ids in 1 + 3 passes, 5 / 3 tokens
  per pass.

  Args:
    texts: any number of them, counted together.

  Returns:
    The ratio; None where no pass followed a prompt's own.
  """
  tokens, passes = committed(texts)
  return tokens / passes if passes else None
