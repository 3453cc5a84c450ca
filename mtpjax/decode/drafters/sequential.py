"""Drafts from sequential heads: a chain that is given its own drafts.

Head k (offset k + 1) at row i goes on from row i of head k - 1 and is given the
token x_{i+k}. With the root at position L and drafts d1, d2, ... after it:

  row               L-3    L-2    L-1
  head 1 is given   x_L-2  x_L-1  x_L            and proposes d1 at row L-1
  head 2            x_L-1  x_L    d1                          d2
  head 3            x_L    d1     d2                          d3

Rows that are given committed tokens alone, those up to L - k, never change:
their keys and values are in the head's cache, and the state of the last of
them is kept, since there the next head goes on once one more token is known.
Only the k - 1 rows after them are run again in every pass. So nothing kept
depends on the tree, and programs with other trees can take turns.

A text shorter than the chain has no row L - k yet: then all rows from row 0 on
are run, and none of the kept states is read.

Axes: B requests, J slots (rows that a head runs), M heads, D width, S
positions of a text, V vocabulary.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from mtpjax.decode.drafters.drafter import Committed, Context, Prompts
from mtpjax.decode.drafters.drafts import Candidates, Drafts
from mtpjax.decode.drafters.heads import HeadCaches, Heads, empty_caches
from mtpjax.heads import HeadContext, MultiTokenModel
from mtpjax.model import KeyValues, Placement, cache, masks

Pick = Callable[[int, jax.Array], jax.Array]


def fill(
  model: MultiTokenModel,
  params: Any,
  caches: HeadCaches,
  tap_BTD: jax.Array,
  tokens_BS: jax.Array,
  context: HeadContext,
  length_B: jax.Array,
) -> tuple[HeadCaches, jax.Array]:
  """Runs all kept heads over prompts.

  Args:
    model: the model.
    params: from `decode_params`.
    caches: of the kept heads, at least one; empty.
    tap_BTD: tapped states of the prompts.
    tokens_BS: the texts, the first token after each prompt included.
    context: of the prompts.
    length_B: position of that token, the root.

  Returns:
    The caches, and the states of the last rows [B, M, D].
  """
  hidden_BTD, n = tap_BTD, tap_BTD.shape[1]
  filled, reached = [], []
  for k, one in enumerate(caches, 1):
    # What lies after a text is given to rows that nobody reads.
    told_BT = jnp.take(tokens_BS, jnp.arange(n) + k, axis=1, mode="clip")
    hidden_BTD, rows = _run(
      model, params, k, hidden_BTD,
      context.replace(ahead_BTD=model.trunk.embed(params["lm"], told_BT)),
    )  # fmt: skip
    filled.append(cache.fill(one, rows))
    reached.append(_row(hidden_BTD, length_B - k))
  return tuple(filled), jnp.stack(reached, axis=1)


def commit(
  model: MultiTokenModel,
  params: Any,
  caches: HeadCaches,
  reached_BMD: jax.Array,
  tap_BJD: jax.Array,
  tokens_BJ: jax.Array,
  n_tokens_B: jax.Array,
  length_B: jax.Array,
) -> tuple[HeadCaches, jax.Array]:
  """Runs all kept heads at the rows that a block of tokens settles.

  Args:
    model: the model.
    params: from `decode_params`.
    caches: of the kept heads, at least one.
    reached_BMD: states of the last rows before the block.
    tap_BJD: tapped states of the accepted path, the root first.
    tokens_BJ: the block, after the root.
    n_tokens_B: how many of its tokens count.
    length_B: position of the root.

  Returns:
    The caches, and the states of the last rows now.
  """
  b, j = tokens_BJ.shape
  hidden_BJD = tap_BJD
  slots_BJ = jnp.broadcast_to(jnp.arange(j), (b, j))
  written, reached = [], []
  for k, one in enumerate(caches, 1):
    start_B, absent_B = _first_slot(k, length_B)
    if k > 1:
      before_BD = reached_BMD[:, k - 2]
      hidden_BJD = _go_on(hidden_BJD, before_BD, absent_B)[:, :j]
    hidden_BJD, rows = _run_slots(
      model, params, k, hidden_BJD, tokens_BJ, start_B, absent_B, one
    )
    place_B = cache.after_reads(start_B, hidden_BJD[:, -1, 0] == jnp.inf)
    # All slots are written; those that don't count are overwritten later.
    written.append(cache.commit(one, rows, slots_BJ, place_B))
    reached.append(_row(hidden_BJD, n_tokens_B - 1 - absent_B))
  return tuple(written), jnp.stack(reached, axis=1)


def draft_logits(
  model: MultiTokenModel,
  params: Any,
  active: int,
  caches: HeadCaches,
  reached_BMD: jax.Array,
  length_B: jax.Array,
  pick: Pick,
) -> jax.Array:
  """Runs the chain of heads at the last accepted row.

  Args:
    model: the model.
    params: from `decode_params`.
    active: heads to run, at least one: those of offsets 2 .. active + 1.
    caches: of the active heads at least.
    reached_BMD: states of their last rows.
    length_B: position of the root.
    pick: (depth - 1, logits [B, 1, V]) -> the draft [B] of that depth, which
      the next head is given.

  Returns:
    Logits [B, active, V], at least float32.
  """
  # Head 1 was given the root when that was committed.
  logits = [model.trunk.logits(params["lm"], reached_BMD[:, :1])]
  drafts_BM = pick(0, logits[0])[:, None]
  hidden_BJD = reached_BMD[:, :0]
  for k in range(2, active + 1):
    start_B, absent_B = _first_slot(k, length_B)
    hidden_BJD, _ = _run_slots(
      model, params, k,
      _go_on(hidden_BJD, reached_BMD[:, k - 2], absent_B),
      drafts_BM, start_B, absent_B, caches[k - 1],
    )  # fmt: skip
    last_BD = _row(hidden_BJD, k - 2 - absent_B)
    logits.append(model.trunk.logits(params["lm"], last_BD[:, None]))
    draft_B1 = pick(k - 1, logits[-1])[:, None]
    drafts_BM = jnp.concatenate([drafts_BM, draft_B1], axis=1)
  return jnp.concatenate(logits, axis=1)


def _first_slot(k: int, length_B: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Returns the row of head k's first slot, and how many before it are absent.

  The slots begin after row L - k. Rows before the text's beginning are left
  out, and all others move up.
  """
  row_B = length_B + 1 - k
  return jnp.maximum(row_B, 0), jnp.maximum(-row_B, 0)


def _go_on(
  hidden_BJD: jax.Array, before_BD: jax.Array, absent_B: jax.Array
) -> jax.Array:
  """Returns what a head goes on from, a slot more than the head before ran.

  Its slots begin a row earlier, at the row that was kept; where that is absent
  they begin at row 0, as those of the head before do.
  """
  before_B1D = before_BD[:, None]
  return jnp.where(
    absent_B[:, None, None] > 0,
    jnp.concatenate([hidden_BJD, before_B1D], axis=1),
    jnp.concatenate([before_B1D, hidden_BJD], axis=1),
  )


def _run_slots(
  model: MultiTokenModel,
  params: Any,
  k: int,
  hidden_BJD: jax.Array,
  told_BJ: jax.Array,
  start_B: jax.Array,
  absent_B: jax.Array,
  cache_: KeyValues,
) -> tuple[jax.Array, KeyValues]:
  """Runs head k after the rows of its cache; see `_first_slot`."""
  j = hidden_BJD.shape[1]
  slots_J = jnp.arange(j)
  told_BJ = jnp.take_along_axis(
    told_BJ, jnp.minimum(slots_J + absent_B[:, None], j - 1), axis=1
  )
  context = HeadContext(
    Placement(
      start_B[:, None] + slots_J,
      masks.Tree(jnp.tril(jnp.ones((j, j), bool)), start_B),
    ),
    cache_,
    model.trunk.embed(params["lm"], told_BJ),
  )
  return _run(model, params, k, hidden_BJD, context)


def _run(
  model: MultiTokenModel,
  params: Any,
  k: int,
  hidden_BTD: jax.Array,
  context: HeadContext,
) -> Any:
  return model.head.apply(
    {"params": params["heads"][k - 1]}, hidden_BTD, context, method="with_rows"
  )


def _row(x_BTD: jax.Array, at_B: jax.Array) -> jax.Array:
  """Returns one row [B, D] of each text; any where there is none."""
  at_B = jnp.maximum(at_B, 0)
  return jnp.take_along_axis(x_BTD, at_B[:, None, None], axis=1)[:, 0]


class _Carry(NamedTuple):
  """What a chain of heads keeps.

  Attributes:
    caches: keys and values of each head.
    reached_BMD: states of the last rows that each head has settled.
  """

  caches: HeadCaches
  reached_BMD: jax.Array


@dataclasses.dataclass(frozen=True)
class ChainedHeads(Heads):
  """Heads that go on from one another, each given the draft in between."""

  def empty(self, model: MultiTokenModel, batch: int, positions: int) -> _Carry:
    """Returns empty caches."""
    return _Carry(
      empty_caches(model, self.n, batch, positions),
      jnp.zeros((batch, self.n, model.config.d_model), model.config.dtype),
    )

  def prefill(
    self, model: MultiTokenModel, params: Any, carry: _Carry, prompts: Prompts
  ) -> _Carry:
    """Runs the heads over the prompts."""
    if not self.n:
      return carry
    return _Carry(
      *fill(
        model, params, carry.caches, prompts.tap_BTD, prompts.tokens_BS,
        HeadContext(prompts.placement), prompts.length_B,
      )
    )  # fmt: skip

  def propose(self, context: Context, carry: _Carry) -> Drafts:
    """Runs the chain, each head given the best candidate of the one before."""
    tree = context.tree
    if not tree.max_depth:
      return Drafts.none(context.root_B)
    ranked: list[Candidates] = []

    def pick(depth: int, logits_B1V: jax.Array) -> jax.Array:
      ranked.append(context.rank(depth, logits_B1V, tree.width))
      return ranked[-1].tokens_BMC[:, 0, 0]

    draft_logits(
      context.model, context.params, tree.max_depth, carry.caches,
      carry.reached_BMD, context.length_B, pick,
    )  # fmt: skip
    candidates = jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), *ranked)
    return candidates.at_nodes(tree, context.root_B)

  def commit(
    self, model: MultiTokenModel, params: Any, carry: _Carry,
    committed: Committed,
  ) -> _Carry:  # fmt: skip
    """Runs the heads at the rows that the accepted path settles."""
    if not self.n:
      return carry
    return _Carry(
      *commit(
        model, params, carry.caches, carry.reached_BMD,
        jnp.take_along_axis(
          committed.tap_BQD, committed.path_BJ[..., None], axis=1
        ),
        committed.tokens_BJ, committed.n_tokens_B, committed.length_B,
      )
    )  # fmt: skip
