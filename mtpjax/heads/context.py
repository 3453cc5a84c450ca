"""What a head may look at beside the hidden states it transforms."""

import jax
from flax import struct

from mtpjax.model import KeyValues, Placement


class HeadContext(struct.PyTreeNode):
  """The rows a head runs on, and what else it may read.

  Attributes:
    placement: of the rows.
    cache: the head's own keys and values in decoding; None in training and
      for kinds that keep none.
    ahead_BTD: embeddings of the tokens that a sequential head is given, those
      k ahead of the rows; None for other kinds.
  """

  placement: Placement
  cache: KeyValues | None = None
  ahead_BTD: jax.Array | None = None
