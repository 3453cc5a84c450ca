"""Which drafts stand: one verdict, however it is reached.

`match` serves greedy decoding and coupled noise. The verifiers that sample
only say how likely each node is, as `Conditionals`, and share one `sample`.
"""

from mtpjax.decode.verifiers.block import block, check_block
from mtpjax.decode.verifiers.rejection import check_rejection, rejection
from mtpjax.decode.verifiers.sampler import Conditionals, sample
from mtpjax.decode.verifiers.typical import typical
from mtpjax.decode.verifiers.verdict import Verdict, match

__all__ = [
  "Conditionals",
  "Verdict",
  "block",
  "check_block",
  "check_rejection",
  "match",
  "rejection",
  "sample",
  "typical",
]
