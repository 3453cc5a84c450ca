"""No extra heads: a plain next-token model."""

import flax.linen as nn
import jax

from mtpjax import config as config_lib
from mtpjax.errors import UserError
from mtpjax.heads.context import HeadContext
from mtpjax.heads.wiring import PARALLEL


class NoHead(nn.Module):
  """Says that there are none."""

  config: config_lib.Model
  heads: config_lib.Heads
  keeps_cache = False
  wiring = PARALLEL
  n_attention_layers = 0

  @staticmethod
  def check(heads: config_lib.Heads) -> None:
    """Raises UserError for offsets beside 1."""
    if heads.n_extra:
      raise UserError(
        f"heads.offsets: {heads.offsets} need heads, and heads.kind is none; "
        "give another kind, or --heads.offsets 1"
      )

  def __call__(self, hidden_BTD: jax.Array, context: HeadContext) -> jax.Array:
    """Never runs."""
    raise NotImplementedError
