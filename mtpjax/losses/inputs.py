"""What goes into the multi-offset loss, and what comes out to be read."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

Head = Callable[[Any, Any, jax.Array, Any], jax.Array]


class HeadInputs(struct.PyTreeNode):
  """Everything the loss has gradients for.

  Attributes:
    per_offset: what the scan over the extra heads walks, stacked [M - 1, ...]:
      their parameters, or what `heads.Stack` says; None for none.
    shared: parameters that all heads use, passed to each of them.
    hidden_BTD: offset 1's hidden states, ready for the unembedding.
    tap_BTD: hidden states the extra heads read.
    unembedding_DV: the unembedding all offsets share.
    probes: float [M - 1]; their gradients are the squared norms of the
      gradients that the extra heads send to the tap.
    own_MDV: unembeddings of the extra heads, [M - 1, D, V]; None where they
      share the model's.
  """

  per_offset: Any
  shared: Any
  hidden_BTD: jax.Array
  tap_BTD: jax.Array
  unembedding_DV: jax.Array
  probes: jax.Array
  own_MDV: jax.Array | None = None


def split_unembeddings(head_params: Any) -> tuple[Any, jax.Array | None]:
  """Takes the heads' own unembeddings [M - 1, D, V], if any, out of theirs."""
  if not head_params or "unembedding" not in head_params:
    return head_params, None
  rest = {k: v for k, v in head_params.items() if k != "unembedding"}
  return rest, head_params["unembedding"]


class OffsetSums(struct.PyTreeNode):
  """What each offset did, for reading; without gradients.

  Attributes:
    nll_M: summed negative log-likelihood, nats.
    correct_M: targets that were the arg max.
    count_M: valid targets.
  """

  nll_M: jax.Array
  correct_M: jax.Array
  count_M: jax.Array

  def __add__(self, other: "OffsetSums") -> "OffsetSums":
    return jax.tree.map(jnp.add, self, other)
