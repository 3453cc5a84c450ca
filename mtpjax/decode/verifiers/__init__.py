"""Which drafts stand: one verdict, however it is reached.

`match` serves greedy decoding and coupled noise. The verifiers that sample
only say how likely each node is, as `Conditionals`, and share one `sample`.
"""

from mtpjax.decode.verifiers.block import Block
from mtpjax.decode.verifiers.coupled import Coupled
from mtpjax.decode.verifiers.rejection import Rejection
from mtpjax.decode.verifiers.sampler import Conditionals, sample
from mtpjax.decode.verifiers.table import VERIFIERS, name_of, of
from mtpjax.decode.verifiers.typical import Typical
from mtpjax.decode.verifiers.verdict import Verdict, match
from mtpjax.decode.verifiers.verifier import Verifier

__all__ = [
  "VERIFIERS",
  "Block",
  "Conditionals",
  "Coupled",
  "Rejection",
  "Typical",
  "Verdict",
  "Verifier",
  "match",
  "name_of",
  "of",
  "sample",
]
