"""What became of the drafts: counted from results, not while decoding."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from mtpjax.decode import Result, Tree, committed, tokens_per_pass


@dataclasses.dataclass(frozen=True)
class Acceptance:
  """What decoding some texts with one tree has gained.

  All of it counts what is left after blocks were cut at the end of a text.

  Attributes:
    tokens: generated tokens, those of the prompts' own passes included.
    passes: trunk passes, those of the prompts included; each adds one token to
      the drafts it accepts, but for the last of a text that was cut.
    tokens_per_pass: see `decode.tokens_per_pass`: without the prompts' own.
    proposed: drafts verified.
    accepted: drafts that became text.
    drafting_passes: passes that had drafts.
    acceptance_by_offset: of offsets 2, 3, ...: share of the drafting passes
      that accepted a draft of this offset; None if no pass had drafts.
    acceptance_by_node: of each node of the tree: share of the drafting passes
      that accepted it, None if there are none; 1 for the root.
    cache_rows_written: rows of a cache that passes wrote provisionally, one
      for each token of the longest path; those of the prompts don't count.
    cache_rows_dropped: those that no token stands after.
  """

  tokens: int
  passes: int
  tokens_per_pass: float | None
  proposed: int
  accepted: int
  drafting_passes: int
  acceptance_by_offset: tuple[float | None, ...]
  acceptance_by_node: tuple[float | None, ...]
  cache_rows_written: int
  cache_rows_dropped: int


def count_acceptance(tree: Tree, results: Sequence[Result]) -> Acceptance:
  """Counts what became of drafts.

  Args:
    tree: that all of the results were decoded with, by a drafter that fills
      all of it or, where it finds nothing, nothing.
    results: at least one.

  Returns:
    The counts.
  """
  drafts = tree.size - 1
  kept, passes = committed(results)
  proposed = sum(result.proposed for result in results)
  origins = np.concatenate([result.origins for result in results]).astype(int)
  n_Q = np.bincount(origins, minlength=tree.size)
  n_Q[0] = drafting = proposed // drafts if drafts else 0
  n_D = np.bincount(tree.depth_Q, weights=n_Q)[1:]
  written = passes * (tree.max_depth + 1)
  return Acceptance(
    tokens=kept + len(results),
    passes=passes + len(results),
    tokens_per_pass=tokens_per_pass(results),
    proposed=proposed,
    accepted=sum(result.accepted for result in results),
    drafting_passes=drafting,
    acceptance_by_offset=_shares(n_D, drafting),
    acceptance_by_node=(1.0, *_shares(n_Q[1:], drafting)),
    cache_rows_written=written,
    cache_rows_dropped=written - kept,
  )


def _shares(counts: np.ndarray, of: int) -> tuple[float | None, ...]:
  """Returns the shares, of nothing None: 0 would say that all were refused."""
  return tuple((counts / of).tolist()) if of else (None,) * len(counts)
