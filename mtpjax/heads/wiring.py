"""How the heads of a kind are strung over a text: in parallel, or as a chain.

A kind of head names its wiring as a class attribute. Training and the ranking
of drafts ask it for a `Stack`; decoding asks which drafter goes with it.
"""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from mtpjax import parallel
from mtpjax.heads.context import HeadContext
from mtpjax.model import gradient_probe

if TYPE_CHECKING:
  from mtpjax.heads.multi_token import MultiTokenModel


class Stack(NamedTuple):
  """The extra heads over whole texts, one after the other.

  Attributes:
    per_offset: what a scan over the extra heads walks, [M - 1, ...]: the
      parameters of parallel heads, the states of a chain.
    probes_M: see `gradient_probe`; one for each of them.
    hidden: (one of `per_offset`, parameters of the final norm, tap_BTD,
      context) -> hidden states [B, T, D] ready for the unembedding.
  """

  per_offset: Any
  probes_M: jax.Array
  hidden: Callable[[Any, Any, jax.Array, Any], jax.Array]


@dataclasses.dataclass(frozen=True)
class Wiring:
  """What differs between wirings.

  Attributes:
    drafter: in `decode.drafters.DRAFTERS`.
    reads_embeddings: heads are given embeddings of the tokens in between.
  """

  drafter: ClassVar[str]
  reads_embeddings: ClassVar[bool]

  def stack(
    self,
    model: "MultiTokenModel",
    params: Any,
    tap_BTD: jax.Array,
    tokens_BT: jax.Array,
    context: HeadContext,
    probes_M: jax.Array,
  ) -> Stack:
    """Strings all extra heads over texts.

    Args:
      model: the model.
      params: {"lm": ..., "heads": ...}; the heads' own unembeddings, if any,
        are not needed.
      tap_BTD: tapped states of the texts.
      tokens_BT: the texts, packed.
      context: of their rows.
      probes_M: floats [M - 1]; see `gradient_probe`.

    Returns:
      The stack.
    """
    raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Parallel(Wiring):
  """Every head reads the tap (Gloeckle et al. 2024, section 2).

  Only one head's activations are alive at a time: the scan of the loss runs
  them.
  """

  drafter: ClassVar[str] = "parallel"
  reads_embeddings: ClassVar[bool] = False

  def stack(self, model, params, tap_BTD, tokens_BT, context, probes_M):
    """See `Wiring.stack`."""
    del tap_BTD, tokens_BT, context
    return Stack(params.get("heads"), probes_M, model.apply_head)


@dataclasses.dataclass(frozen=True)
class Chain(Wiring):
  """Each head goes on from the one before, given the token in between.

  DeepSeek-V3, arXiv 2412.19437, section 2.2. All heads run before the loss:
  their M - 1 hidden states [B, T, D] are alive at a time. Differentiated, only
  the states between the heads are kept.
  """

  drafter: ClassVar[str] = "chain"
  reads_embeddings: ClassVar[bool] = True

  def stack(self, model, params, tap_BTD, tokens_BT, context, probes_M):
    """See `Wiring.stack`.

    A probe before a head reads the gradient that this and all later offsets
    send there. A row whose document ends before the token it is given gets
    any; no target depends on it.
    """
    n, length = model.heads.n_extra, tokens_BT.shape[1]

    def hidden(hidden_BTD, norm_params, tap_BTD, context):
      del tap_BTD, context
      return model.trunk.final_norm(norm_params, hidden_BTD)

    # Looked up once: heads are given the same embeddings, each one further on.
    embedded_BSD = model.trunk.embed(
      params["lm"], jnp.pad(tokens_BT, ((0, 0), (0, n)))
    )

    @jax.checkpoint
    def body(hidden_BTD, xs):
      head_params, ahead, probe = xs
      given = context.replace(
        ahead_BTD=jax.lax.dynamic_slice_in_dim(
          embedded_BSD, ahead, length, axis=1
        )
      )
      hidden_BTD = model.head.apply(
        {"params": head_params}, gradient_probe(hidden_BTD, probe), given
      )
      hidden_BTD = parallel.constrain(
        hidden_BTD, model.mesh, "batch", "time", "width"
      )
      return hidden_BTD, hidden_BTD

    _, hidden_MBTD = jax.lax.scan(
      body, tap_BTD, (params["heads"], jnp.arange(1, n + 1), probes_M)
    )
    # The loss then trains the states; the probes have been read.
    return Stack(hidden_MBTD, jnp.zeros_like(probes_M), hidden)


PARALLEL = Parallel()
CHAIN = Chain()
