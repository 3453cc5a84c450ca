"""What a head may look at beside the hidden states it transforms."""

import jax
from flax import struct

from mtpjax.model import attention, masks


class HeadContext(struct.PyTreeNode):
  """Positions and mask of the rows a head runs on.

  Attributes:
    positions_BT: positions within the document.
    mask: who reads whom.
    cache: the head's own keys and values in decoding; None in training and
      for kinds that keep none.
    ahead_BTD: embeddings of the tokens that a sequential head is given, those
      k ahead of the rows; None for other kinds.
  """

  positions_BT: jax.Array
  mask: masks.Mask
  cache: attention.KeyValues | None = None
  ahead_BTD: jax.Array | None = None
