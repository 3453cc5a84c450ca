"""What every drafter returns."""

import jax
from flax import struct


class Drafts(struct.PyTreeNode):
  """Candidates of each depth, one list for all nodes of that depth.

  Attributes:
    candidates_BMC: C tokens per depth, likeliest (or first drawn) first.
    is_valid_BMC: False where there is no such draft; its token means nothing.
    probs_BMV: the distributions they were drawn from; None where the verifier
      does not ask.
  """

  candidates_BMC: jax.Array
  is_valid_BMC: jax.Array
  probs_BMV: jax.Array | None
