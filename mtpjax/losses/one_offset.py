"""The sums of one offset, chunk by chunk, with and without gradients."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from mtpjax.losses import cross_entropy
from mtpjax.losses.chunks import Chunk, Cutter
from mtpjax.losses.cross_entropy import Unembeddings
from mtpjax.losses.readout import Readout, Sums


def add(a: Any, b: Any) -> Any:
  """Adds two trees; None, where nothing is asked for, stays None."""
  return jax.tree.map(jnp.add, a, b)


@dataclasses.dataclass(frozen=True)
class OneOffset:
  """Runs over the chunks of one offset; the logits of one chunk are alive.

  Attributes:
    cutter: what made the chunks.
    z_loss: coefficient of the squared log-normaliser.
    readouts: further sums.
  """

  cutter: Cutter
  z_loss: float
  readouts: tuple[Readout, ...]

  def sums(self, chunks: Chunk, unembeddings: Unembeddings) -> Sums:
    """Returns the sums over all chunks."""

    def visit(sums: Sums, chunk: Chunk) -> tuple[Sums, None]:
      return sums + self._sums_of(chunk, unembeddings), None

    return jax.lax.scan(visit, self._zero(chunks, unembeddings), chunks)[0]

  def gradients(
    self,
    chunks: Chunk,
    unembeddings: Unembeddings,
    scale: jax.Array,
    dunembedding_GDV: jax.Array | None,
  ) -> tuple[Sums, jax.Array, jax.Array | None]:
    """Returns sums and the gradients of scale * objective.

    Args:
      chunks: of the offset.
      unembeddings: of the offset and of its target.
      scale: factor of the objective.
      dunembedding_GDV: what the unembedding's gradient is added to; None
        where nobody asks for it.

    Returns:
      The sums, the gradient of the states cut as they are, and
      `dunembedding_GDV` with the gradient added.
    """

    def visit(carry: Any, chunk: Chunk) -> tuple[Any, jax.Array]:
      sums, dunembedding_GDV = carry
      more, dhidden_GCD, d = cross_entropy.chunk_gradients(
        chunk, unembeddings, scale, self.z_loss, self.readouts,
        trains_unembedding=dunembedding_GDV is not None,
      )  # fmt: skip
      return (sums + more, add(dunembedding_GDV, d)), dhidden_GCD

    zero = self._zero(chunks, unembeddings)
    (sums, dunembedding_GDV), dhidden_NGCD = jax.lax.scan(
      visit, (zero, dunembedding_GDV), chunks
    )
    return sums, dhidden_NGCD, dunembedding_GDV

  def _sums_of(self, chunk: Chunk, unembeddings: Unembeddings) -> Sums:
    return cross_entropy.chunk_sums(
      chunk, unembeddings, self.z_loss, self.readouts
    )

  def _zero(self, chunks: Chunk, unembeddings: Unembeddings) -> Sums:
    """The empty sums; a readout's shape is whatever it returns."""
    shapes = jax.eval_shape(
      lambda chunks: self._sums_of(
        jax.tree.map(lambda x: x[0], chunks), unembeddings
      ),
      chunks,
    )
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
