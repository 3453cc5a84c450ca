"""Log-probabilities of given texts under the next-token model.

Axes: B rows of a batch, T positions, N = B x T, D width, V vocabulary.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mtpjax.decode.buckets import LEAST_TOKENS, bucket
from mtpjax.errors import UserError
from mtpjax.heads import MultiTokenModel
from mtpjax.model import Placement

Pair = tuple[Sequence[int], Sequence[int]]
_CHUNK = 256  # positions whose logits are in memory at a time
# Attention takes memory by the square of the length: rows of more tokens than
# these are fewer in a batch, so that it takes no more of them.
_FULL_BATCH_TOKENS = 1024


@functools.partial(jax.jit, static_argnames=("model",))
def score_rows(
  model: MultiTokenModel,
  lm_params: Any,
  tokens_BT: jax.Array,
  targets_BT: jax.Array,
  length_B: jax.Array,
) -> tuple[jax.Array, jax.Array]:
  """Scores the token after every position.

  Args:
    model: the model.
    lm_params: of the next-token model, params["lm"].
    tokens_BT: one text per row, padded on the right with any ids.
    targets_BT: the ids after them.
    length_B: tokens of each text.

  Returns:
    log p(target), at least float32, and whether it is the likeliest token,
    [B, T] each; what stands after a text means nothing.
  """
  positions_BT = jnp.broadcast_to(
    jnp.arange(tokens_BT.shape[1]), tokens_BT.shape
  )
  is_text_BT = positions_BT < length_B[:, None]
  out = model.apply_trunk(
    lm_params,
    tokens_BT,
    Placement.packed(positions_BT, is_text_BT.astype(jnp.int32)),
  )

  def score(x: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
    hidden_D, target = x
    logits_V = model.trunk.logits(lm_params, hidden_D)
    logprob = logits_V[target] - jax.nn.logsumexp(logits_V)
    return logprob, jnp.argmax(logits_V) == target

  hidden_ND = out.hidden_BTD.reshape(-1, out.hidden_BTD.shape[-1])
  logprobs_N, is_greedy_N = jax.lax.map(
    score, (hidden_ND, targets_BT.reshape(-1)), batch_size=_CHUNK
  )
  shape = tokens_BT.shape
  return logprobs_N.reshape(shape), is_greedy_N.reshape(shape)


@dataclasses.dataclass(frozen=True, eq=False)
class Scorer:
  """Scores continuations, many at a time.

  Attributes:
    model: the model.
    lm_params: of the next-token model, params["lm"].
    batch_size: rows of a batch; fewer where texts are longer than 1,024.
    max_length: tokens a row has at most; a longer text loses its front.
  """

  model: MultiTokenModel
  lm_params: Any
  batch_size: int
  max_length: int

  def __post_init__(self):
    for name in ("batch_size", "max_length"):
      if getattr(self, name) < 1:
        raise UserError(f"{name}: {getattr(self, name)} must be at least 1")

  def score(
    self, pairs: Sequence[Pair], on_scored: Callable[[int], Any] | None = None
  ) -> list[tuple[float, bool]]:
    """Scores each continuation after its context.

    Args:
      pairs: (ids of the context, at least one; ids of the continuation).
      on_scored: called with the number of pairs that a batch has scored.

    Returns:
      Per pair, in the given order, the log-probability of the continuation in
      nats, and whether greedy decoding would write it.

    Raises:
      UserError: an empty context, or a continuation that no row can hold.
    """
    texts = [self._cut(n, *pair) for n, pair in enumerate(pairs)]
    # Rows of like length stand together; the longest, which need the most
    # memory, come first.
    order = sorted(range(len(pairs)), key=lambda n: -len(texts[n]))
    scores: list[tuple[float, bool]] = [(0.0, True)] * len(pairs)
    start = 0
    while start < len(order):
      width = bucket(len(texts[order[start]]) - 1, LEAST_TOKENS)
      rows = self._rows(width)
      numbers = order[start : start + rows]
      start += rows
      logprobs_BT, is_greedy_BT = self._run(
        [texts[n] for n in numbers], rows, width
      )
      for b, n in enumerate(numbers):
        length = len(texts[n]) - 1
        scored = slice(length - len(pairs[n][1]), length)
        scores[n] = (
          float(np.sum(logprobs_BT[b, scored], dtype=np.float64)),
          bool(np.all(is_greedy_BT[b, scored])),
        )
      if on_scored is not None:
        on_scored(len(numbers))
    return scores

  def _cut(
    self, n: int, context: Sequence[int], continuation: Sequence[int]
  ) -> list[int]:
    """Returns the text; its last id is only a target."""
    if not context:
      raise UserError(
        f"text {n}: has no context; give at least one id, such as the BOS id"
      )
    if len(continuation) > self.max_length:
      raise UserError(
        f"text {n}: {len(continuation)} tokens to score are more than "
        f"max_length = {self.max_length}; raise it or shorten the text"
      )
    return [*context, *continuation][-(self.max_length + 1) :]

  def _rows(self, width: int) -> int:
    """Returns how many rows of a width stand in a batch."""
    share = min(1.0, (_FULL_BATCH_TOKENS / width) ** 2)
    return max(1, int(self.batch_size * share))

  def _run(
    self, texts: Sequence[Sequence[int]], rows: int, width: int
  ) -> tuple[np.ndarray, np.ndarray]:
    # As many rows in every batch of a width, and widths are powers of two: one
    # program per width.
    ids = np.zeros((rows, width + 1), np.int32)
    length_B = np.ones(rows, np.int32)
    for b, text in enumerate(texts):
      ids[b, : len(text)] = text
      length_B[b] = max(len(text) - 1, 1)
    return jax.device_get(
      score_rows(self.model, self.lm_params, ids[:, :-1], ids[:, 1:], length_B)
    )
