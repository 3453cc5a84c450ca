"""Parts of the parameters: "lm", "heads", and any that are added.

The parameters of a model are a dict with an entry for each part. A part is
saved, restored, sharded, frozen or trained as a whole.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax


@dataclasses.dataclass(frozen=True)
class Part:
  """A part beside "lm" and "heads", such as an adapter of a frozen model.

  Attributes:
    name: its entry in the parameters.
    init: (PRNG key, model) -> a tree of values, each in the box that names its
      axes, see `parallel.logical`.
  """

  name: str
  init: Callable[[jax.Array, Any], Any]


@dataclasses.dataclass(frozen=True)
class Trained:
  """Which parts of the parameters learn; the others are frozen.

  Attributes:
    parts: their names; None for all there are.
  """

  parts: tuple[str, ...] | None = None

  def __contains__(self, part: str) -> bool:
    return self.parts is None or part in self.parts

  def of(self, params: dict[str, Any]) -> dict[str, Any]:
    """Returns the parts that learn, of those that are there."""
    return {k: v for k, v in params.items() if k in self}

  def frozen(self, params: dict[str, Any]) -> dict[str, Any]:
    """Returns the parts that do not learn."""
    return {k: v for k, v in params.items() if k not in self}


EVERYTHING = Trained()
