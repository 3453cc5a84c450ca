"""A sequential module as a head (DeepSeek-V3, arXiv 2412.19437, section 2.2).

Module k, the head of offset k + 1, goes on where module k - 1 has stopped, and
is given the token in between:

  h_i^k = layer_k( P_k [ RMSNorm(embedding of x_{i+k}) ; RMSNorm(h_i^{k-1}) ] )

h^0 is the trunk's state after its last layer. The state of row i of module k
has seen the tokens up to x_{i+k} and predicts x_{i+k+1}.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from mtpjax import config as config_lib
from mtpjax.errors import UserError
from mtpjax.heads.context import HeadContext
from mtpjax.heads.wiring import CHAIN
from mtpjax.model import KeyValues, block, linear, norm


class SequentialHead(nn.Module):
  """Two norms, the projection that joins what they give, and a layer."""

  config: config_lib.Model
  heads: config_lib.Heads
  keeps_cache = True
  wiring = CHAIN
  n_attention_layers = 1
  published = "deepseek"

  @staticmethod
  def check(heads: config_lib.Heads) -> None:
    """Raises UserError for another tap, or offsets with gaps."""
    if heads.tap != "last":
      raise UserError(
        f"heads.tap: {heads.tap!r} is not what {heads.kind} heads read; give "
        "--heads.tap last"
      )
    run = tuple(range(1, len(heads.offsets) + 1))
    if heads.offsets != run:
      raise UserError(
        f"heads.offsets: {heads.offsets} leaves an offset out, and each "
        f"{heads.kind} head goes on from the one before; give "
        f"{','.join(map(str, run))}"
      )

  def setup(self):
    """Creates the parts."""
    c = self.config
    self.embedding_norm = norm.RMSNorm(c.norm_eps, c.param_dtype)
    self.hidden_norm = norm.RMSNorm(c.norm_eps, c.param_dtype)
    self.projection = linear.Linear(
      (c.d_model,), ("embed",), ("embed_out",), c.dtype, c.param_dtype
    )
    self.layer = block.Block(c)

  def __call__(self, hidden_BTD: jax.Array, context: HeadContext) -> jax.Array:
    """Maps the states of the module before to its own.

    Args:
      hidden_BTD: h^{k-1} of the rows.
      context: `ahead_BTD` has the embeddings of the tokens k ahead of them.

    Returns:
      h^k [B, T, D], before the final norm.

    Raises:
      UserError: the context has no embeddings.
    """
    return self.with_rows(hidden_BTD, context)[0]

  def with_rows(
    self, hidden_BTD: jax.Array, context: HeadContext
  ) -> tuple[jax.Array, KeyValues]:
    """Returns what a call does, and the keys and values of these rows."""
    if context.ahead_BTD is None:
      raise UserError(
        "heads.kind: 'sequential' heads run as a chain that is given the "
        "tokens between, not one by one as here; use another kind"
      )
    # The order of the columns is that of the published weights.
    joined_BTE = jnp.concatenate(
      [self.embedding_norm(context.ahead_BTD), self.hidden_norm(hidden_BTD)],
      axis=-1,
    )
    return self.layer(
      self.projection(joined_BTE), context.placement, context.cache
    )
