"""Coupled noise: the text is that of plain sampling, token for token."""

import dataclasses
from typing import ClassVar

from mtpjax.decode.verifiers.verifier import Verifier


@dataclasses.dataclass(frozen=True)
class Coupled(Verifier):
  """Shares the Gumbel noise of a position between draft and target.

  What the target then chooses is what plain sampling with the same seed would,
  whatever was drafted; see `verdict.match`.
  """

  shares_noise: ClassVar[bool] = True
