"""What drafters propose: candidates of a depth, or a token for every node."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from mtpjax.decode.tree import Tree


class Candidates(struct.PyTreeNode):
  """Ranked candidates of some depths, each for all nodes of its depth.

  Attributes:
    tokens_BMC: C tokens per depth, likeliest (or first drawn) first.
    is_valid_BMC: False where there is no such candidate; its token means
      nothing.
    probs_BMV: the distributions they were drawn from; None where the verifier
      does not ask.
  """

  tokens_BMC: jax.Array
  is_valid_BMC: jax.Array
  probs_BMV: jax.Array | None

  def at_nodes(self, tree: Tree, root_B: jax.Array) -> "Drafts":
    """Gives each node of a tree the candidate of its depth and rank."""
    at_I = (slice(None), tree.depth_Q[1:] - 1, np.asarray(tree.ranks)[1:])
    return Drafts.after(
      root_B,
      self.tokens_BMC[at_I],
      self.is_valid_BMC[at_I],
      self.probs_BMV,
      tuple((tree.depth_Q[1:] - 1).tolist()),
    )


class Drafts(struct.PyTreeNode):
  """A token for every node of a tree.

  Attributes:
    tokens_BQ: the tokens, the root's first.
    is_valid_BQ: False for a node that is no draft; its token means nothing.
    probs_BMV: distributions that drafts were drawn from; None where the
      verifier does not ask.
    drawn_from: for each node but the root, which of these it was drawn from.
      Siblings share one.
  """

  tokens_BQ: jax.Array
  is_valid_BQ: jax.Array
  probs_BMV: jax.Array | None = None
  drawn_from: tuple[int, ...] = struct.field(pytree_node=False, default=())

  @classmethod
  def after(
    cls,
    root_B: jax.Array,
    tokens_BI: jax.Array,
    is_valid_BI: jax.Array,
    probs_BMV: jax.Array | None = None,
    drawn_from: tuple[int, ...] = (),
  ) -> "Drafts":
    """Puts the root before the tokens of all other nodes, I of them."""
    root_B1 = root_B[:, None]
    is_root_B1 = jnp.ones_like(root_B1, bool)
    return cls(
      jnp.concatenate([root_B1, tokens_BI], axis=1),
      jnp.concatenate([is_root_B1, is_valid_BI], axis=1),
      probs_BMV,
      drawn_from,
    )

  @classmethod
  def none(cls, root_B: jax.Array) -> "Drafts":
    """Returns the root alone."""
    return cls(root_B[:, None], jnp.ones_like(root_B[:, None], bool))
