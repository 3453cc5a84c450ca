"""The text itself as the target."""

import dataclasses
from typing import ClassVar

from mtpjax.losses.targets.target import Source, TargetIds
from mtpjax.losses.targets.targets import Targets


@dataclasses.dataclass(frozen=True)
class Labels(TargetIds):
  """Offset m learns the token m positions ahead."""

  needs_base: ClassVar[bool] = False

  def of(self, labels: Targets, source: Source) -> Targets:
    """See `Target`."""
    del source
    return labels
