"""Typical acceptance, which is LOSSY: its texts are not the model's.

A draft stands if the model finds it likely enough, and the longest path wins.
What comes is more conventional than what the model would say.
"""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import special

from mtpjax.decode.tree import Tree
from mtpjax.decode.verifiers.distribution import mass_of
from mtpjax.decode.verifiers.sampler import Conditionals
from mtpjax.decode.verifiers.verifier import Verifier


@dataclasses.dataclass(frozen=True)
class Typical(Verifier):
  """Typical acceptance. LOSSY: changes the distribution of texts.

  Attributes:
    epsilon: probability that is enough whatever the entropy, below 1.
    delta: what a draft must reach, as a multiple of exp(-entropy).
  """

  epsilon: float = 0.09
  delta: float = 0.3
  is_lossless: ClassVar[bool] = False

  def judge(
    self,
    tree: Tree,
    tokens_BQ: jax.Array,
    valid_BQ: jax.Array,
    target_BQV: jax.Array,
    draft_BMV: jax.Array | None = None,
    drawn_from: Sequence[int] = (),
  ) -> Conditionals:
    """Accepts what is likely enough. LOSSY: changes the distribution of texts.

    A draft x passes if p(x) > min(epsilon, delta exp(-H(p))), p being the
    target after its parent and H its entropy in nats. The longest path of
    drafts that pass is accepted for sure, the likeliest of several. The last
    token is drawn from the target.

    Args:
      tree: the tree.
      tokens_BQ: token of each node.
      valid_BQ: whether a node holds a draft; one that doesn't never passes.
      target_BQV: target after each node.
      draft_BMV: not used.
      drawn_from: not used.

    Returns:
      `Conditionals`, all accept_BQ 0 or 1.

    Source: Cai et al. 2024, arXiv 2401.10774 (Medusa), section 2.3.1.
    """
    del draft_BMV, drawn_from
    parents_Q = np.array(tree.parents)
    mass_BQ = mass_of(target_BQV, parents_Q, tokens_BQ, valid_BQ)
    entropy_BQ = jnp.sum(special.entr(target_BQV), axis=-1)
    threshold_BQ = jnp.minimum(self.epsilon, self.delta * jnp.exp(-entropy_BQ))
    passes_BQ = mass_BQ > threshold_BQ[:, parents_Q]
    # The root is no draft: it stands and adds nothing.
    passes_BQ = passes_BQ.at[:, 0].set(True)
    loglik_BQ = jnp.log(jnp.where(passes_BQ, mass_BQ, 1)).at[:, 0].set(0)

    ancestors_QQ = jnp.asarray(tree.ancestors_QQ)
    stands_BQ = jnp.all(passes_BQ[:, None, :] | ~ancestors_QQ, axis=-1)
    path_loglik_BQ = jnp.sum(
      jnp.where(ancestors_QQ, loglik_BQ[:, None, :], 0), axis=-1
    )
    length_BQ = jnp.where(stands_BQ, jnp.asarray(tree.depth_Q), -1)
    is_longest_BQ = length_BQ == jnp.max(length_BQ, axis=-1, keepdims=True)
    best_B = jnp.argmax(
      jnp.where(is_longest_BQ, path_loglik_BQ, -jnp.inf), axis=-1
    )
    return Conditionals(
      ancestors_QQ[best_B].astype(target_BQV.dtype), target_BQV
    )
