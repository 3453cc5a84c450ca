"""What goes into the multi-offset loss."""

from collections.abc import Callable
from typing import Any

import jax
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
