"""Drafts from the text itself: what followed these tokens the last time.

Prompt lookup (Saxena 2023): the longest n-gram that ends the text and occurred
before proposes what came after it. No training; works on any model.
"""

import dataclasses

import jax
import jax.numpy as jnp

from mtpjax.decode.drafters.drafter import Context, Drafter
from mtpjax.decode.drafters.drafts import Drafts
from mtpjax.decode.tree import Tree
from mtpjax.errors import UserError
from mtpjax.heads import MultiTokenModel


def find(
  tokens_BS: jax.Array, length_B: jax.Array, longest: int, n: int
) -> tuple[jax.Array, jax.Array]:
  """Continues the last occurrence of the longest n-gram that ends a text.

  Args:
    tokens_BS: texts; what lies beyond `length_B` means nothing.
    length_B: position of the last token.
    longest: tokens of an n-gram at most, at least 1.
    n: tokens to propose.

  Returns:
    The tokens [B, n], and how many tokens of the text's end occurred before
    them [B]; 0 where there is no continuation. One that runs into the end of
    the text goes on periodically.
  """
  positions_S = jnp.arange(tokens_BS.shape[1])
  is_before_BS = positions_S < length_B[:, None]
  matched_BS = jnp.zeros(tokens_BS.shape, jnp.int32)
  goes_on_BS = is_before_BS
  for back in range(longest):
    own_B1 = jnp.take_along_axis(
      tokens_BS, jnp.maximum(length_B - back, 0)[:, None], axis=1
    )
    # What stands `back` tokens before each position.
    there_BS = jnp.roll(tokens_BS, back, axis=1)
    goes_on_BS &= (there_BS == own_B1) & (positions_S >= back)
    matched_BS += goes_on_BS
  # The longest match, among those the latest.
  best_BS = matched_BS * tokens_BS.shape[1] + positions_S
  end_B = jnp.argmax(jnp.where(matched_BS > 0, best_BS, -1), axis=1)
  period_B1 = jnp.maximum(length_B - end_B, 1)[:, None]
  taken_BN = end_B[:, None] + 1 + jnp.arange(n) % period_B1
  return (
    jnp.take_along_axis(tokens_BS, taken_BN, axis=1),
    jnp.max(matched_BS, axis=1),
  )


@dataclasses.dataclass(frozen=True)
class Lookup(Drafter):
  """Drafts a chain of what followed the text's last tokens before.

  Attributes:
    ngram: longest n-gram that is searched for, at least 1.
  """

  ngram: int = 3

  def check(self, model: MultiTokenModel, tree: Tree) -> None:
    """Raises UserError for a tree with branches."""
    del model
    if not tree.is_path:
      raise UserError(
        f"tree: lookup drafts a chain, not {tree.size} nodes in branches"
      )

  def search(self, context: Context) -> tuple[Drafts, jax.Array]:
    """Returns the drafts, and how many tokens were matched [B]."""
    depth = context.tree.max_depth
    tokens_BI, n_matched_B = find(
      context.tokens_BS, context.length_B, self.ngram, depth
    )
    probs_BMV = None
    if context.draws:
      # Nothing was drawn: all of the probability is on the proposal.
      probs_BMV = jax.nn.one_hot(tokens_BI, context.model.config.vocab_size)
    is_valid_BI = jnp.broadcast_to(n_matched_B[:, None] > 0, tokens_BI.shape)
    drafts = Drafts.after(
      context.root_B, tokens_BI, is_valid_BI, probs_BMV, tuple(range(depth))
    )
    return drafts, n_matched_B

  def propose(self, context: Context, carry: tuple[()]) -> Drafts:
    """Proposes the continuation of the longest match."""
    del carry
    return self.search(context)[0]
