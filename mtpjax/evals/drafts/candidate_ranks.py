"""Where the heads rank the tokens that plain decoding really takes.

Axes: B texts, T positions, M drafted depths, N generated tokens, V vocabulary.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mtpjax.budget import MISS
from mtpjax.decode import Request, Result, noise
from mtpjax.decode.buckets import LEAST_TOKENS, bucket
from mtpjax.heads import HeadContext, MultiTokenModel
from mtpjax.model import Placement, unembed

_UNKNOWN = -1


def candidate_ranks(
  model: MultiTokenModel,
  params: Any,
  requests: Sequence[Request],
  results: Sequence[Result],
  depths: int,
) -> list[np.ndarray]:
  """Ranks each token of finished texts among the drafts made for it.

  One pass over each whole text, as in training: the drafts after a root are
  what the heads say at the row before it, whatever was accepted before. At a
  temperature the noise of the token's position is added to target and draft
  alike, as the coupled verifier does.

  Sequential heads are given the text itself. In decoding they are given their
  own best candidates: the same along a path of best candidates, so these ranks
  are exact for chains, and flatter a tree after any other candidate.

  Args:
    model: the model.
    params: {"lm": ..., "heads": ...}, stacked.
    requests: what was asked; ids, temperature, seed and index count, and no
      stage of the logits pipeline but the temperature.
    results: what plain decoding gave.
    depths: M, at most the unbroken run of heads.

  Returns:
    Per text int32 [N, M]: [t, d - 1] is the rank of the token d places after
    generated token t among the candidates of depth d; at most `budget.MISS`;
    negative where the text ends before.
  """
  pairs = list(zip(requests, results, strict=True))
  width = bucket(max(len(q.ids) + len(r.ids) for q, r in pairs), LEAST_TOKENS)
  ranks = []
  for request, result in pairs:
    ids = (*request.ids, *result.ids)
    tokens_T = np.zeros(width, np.int32)
    tokens_T[: len(ids)] = ids
    ranks_TM = np.asarray(
      _ranks_of_text(
        model, depths, params, tokens_T, request.temperature, request.seed,
        request.index,
      )
    )  # fmt: skip
    # Row s of a text drafts after the root at s + 1.
    ranks_NM = ranks_TM[len(request.ids) - 1 : len(ids) - 1]
    ahead_NM = np.arange(len(result.ids))[:, None] + np.arange(1, depths + 1)
    ranks.append(np.where(ahead_NM < len(result.ids), ranks_NM, _UNKNOWN))
  return ranks


@functools.partial(jax.jit, static_argnames=("model", "depths"))
def _ranks_of_text(
  model: MultiTokenModel,
  depths: int,
  params: Any,
  tokens_T: jax.Array,
  temperature: jax.Array,
  seed: jax.Array,
  index: jax.Array,
) -> jax.Array:
  """Returns [T, M]: the rank of token s + 1 + d at row s and depth d."""
  tokens_BT, positions_BT = tokens_T[None], jnp.arange(len(tokens_T))[None]
  context = HeadContext(Placement.whole(tokens_BT))
  lm = params["lm"]
  out = model.apply_trunk(lm, tokens_BT, context.placement)
  keys_B = noise.request_key(seed, index)[None]
  stack = model.wiring.stack(
    model, params, out.tap_BTD, tokens_BT, context,
    jnp.zeros(model.heads.n_extra),
  )  # fmt: skip

  def of_depth(depth: int) -> jax.Array:
    one, own = jax.tree.map(
      lambda leaf: leaf[depth - 1],
      (stack.per_offset, params["heads"].get("unembedding")),
    )
    hidden_BTD = stack.hidden(one, lm["final_norm"], out.tap_BTD, context)
    own_DV = model.trunk.unembedding(lm) if own is None else own
    logits_TV = unembed(hidden_BTD, own_DV)[0]
    noise_TV = noise.position_noise(
      keys_B, positions_BT + 1 + depth, logits_TV.shape[-1]
    )[0]
    sampled_TV = logits_TV / jnp.where(temperature > 0, temperature, 1)
    scores_TV = jnp.where(temperature > 0, sampled_TV + noise_TV, logits_TV)
    target_T1 = jnp.roll(tokens_T, -1 - depth)[:, None]
    target_score_T1 = jnp.take_along_axis(scores_TV, target_T1, axis=1)
    ranks_T = jnp.sum(scores_TV > target_score_T1, axis=-1, dtype=jnp.int32)
    return jnp.minimum(ranks_T, MISS)

  return jnp.stack([of_depth(d) for d in range(1, depths + 1)], axis=-1)
