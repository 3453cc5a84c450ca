"""A grammar over tokens, on the host.

Axes: G states of the automaton, E its edges.
"""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class Grammar:
  """A token automaton. State 0 is the start; from every state EOS is in reach.

  Attributes:
    source: the pattern or schema, for messages.
    vocab_size: what all token ids are below.
    starts_G1: where the edges of each state begin, and the end of the last's.
    tokens_E: tokens, ascending within a state. EOS ids are allowed exactly
      where the text so far matches.
    next_E: the state that each leads to; EOS stays where it is.
  """

  source: str
  vocab_size: int
  starts_G1: np.ndarray
  tokens_E: np.ndarray
  next_E: np.ndarray

  @property
  def n_states(self) -> int:
    """States, the start included."""
    return len(self.starts_G1) - 1

  def edges(self, state: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the tokens allowed in a state and the states they lead to."""
    span = slice(self.starts_G1[state], self.starts_G1[state + 1])
    return self.tokens_E[span], self.next_E[span]


def shown(source: str) -> str:
  """Returns a pattern or schema on one line, and not too long a one."""
  line = " ".join(source.split())
  return repr(line if len(line) <= 100 else f"{line[:97]}...")
