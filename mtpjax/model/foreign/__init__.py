"""Somebody else's next-token model as a trunk: a Flax Linen or NNX module.

The module maps (tokens_BT, positions_BT, allowed_B1TS, cache) to hidden states.
`linen_module` and `nnx_module` describe it; `heads.MultiTokenModel` takes the
description in place of mtpjax's own layers. Its parameters become
{"lm": {"module": ..., "final_norm": ...}}, with the names they have.
"""

from mtpjax.model.foreign.description import ForeignModule, default_axes
from mtpjax.model.foreign.linen import linen_module
from mtpjax.model.foreign.nnx import nnx_module
from mtpjax.model.foreign.trunk import ForeignTrunk

__all__ = [
  "ForeignModule",
  "ForeignTrunk",
  "default_axes",
  "linen_module",
  "nnx_module",
]
