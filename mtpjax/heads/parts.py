"""Parts of the parameters: "lm", "heads", and any that come."""

import dataclasses
from typing import Any

PARTS = ("lm", "heads")


@dataclasses.dataclass(frozen=True)
class Trained:
  """Which parts of the parameters learn; the others are frozen.

  Attributes:
    parts: names of the parts, as in `{"lm": ..., "heads": ...}`.
  """

  parts: tuple[str, ...] = PARTS

  def __contains__(self, part: str) -> bool:
    return part in self.parts

  def of(self, params: dict[str, Any]) -> dict[str, Any]:
    """Returns the parts that learn, of those that are there."""
    return {k: v for k, v in params.items() if k in self.parts}

  def frozen(self, params: dict[str, Any]) -> dict[str, Any]:
    """Returns the parts that do not learn."""
    return {k: v for k, v in params.items() if k not in self.parts}


EVERYTHING = Trained()
