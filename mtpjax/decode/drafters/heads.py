"""Drafts from the model's own heads.

Head of offset d + 1, at the last accepted row, proposes the tokens of depth d.
Block heads keep caches of their own: keys and values are projections of the
tapped states, written for the prompt and for accepted rows; the query and the
MLP run at the last accepted row only.
"""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from mtpjax.decode.drafters.drafter import (
  Committed,
  Context,
  Drafter,
  Prompts,
)
from mtpjax.decode.drafters.drafts import Drafts
from mtpjax.decode.tree import Tree
from mtpjax.errors import UserError
from mtpjax.heads import HeadContext, MultiTokenModel
from mtpjax.model import KeyValues, Placement, cache, masks

HeadCaches = tuple[KeyValues, ...]


def empty_caches(
  model: MultiTokenModel, active: int, batch: int, capacity: int
) -> HeadCaches:
  """Returns one cache per active head; () for kinds that keep none."""
  if not model.head.keeps_cache:
    return ()
  return tuple(
    cache.empty(model.config, batch, capacity) for _ in range(active)
  )


def _rows(
  model: MultiTokenModel, params: Any, tap_BTD: jax.Array, positions_BT
) -> Any:
  return model.head.apply(
    {"params": params}, tap_BTD, positions_BT, method="rows"
  )


def fill(
  model: MultiTokenModel,
  head_params: tuple[Any, ...],
  caches: HeadCaches,
  tap_BTD: jax.Array,
  positions_BT: jax.Array,
) -> HeadCaches:
  """Writes the rows of a prompt, tap_BTD, at the beginning of the caches."""
  return tuple(
    cache.fill(c, _rows(model, params, tap_BTD, positions_BT))
    for c, params in zip(caches, head_params, strict=False)
  )


def commit(
  model: MultiTokenModel,
  head_params: tuple[Any, ...],
  caches: HeadCaches,
  tap_BQD: jax.Array,
  positions_BQ: jax.Array,
  path_BJ: jax.Array,
  start_B: jax.Array,
) -> HeadCaches:
  """Writes the rows of an accepted path; see `model.cache.commit`."""
  return tuple(
    cache.commit(
      c, _rows(model, params, tap_BQD, positions_BQ), path_BJ, start_B
    )
    for c, params in zip(caches, head_params, strict=False)
  )


def draft_logits(
  model: MultiTokenModel,
  params: Any,
  active: int,
  caches: HeadCaches,
  tap_BD: jax.Array,
  position_B: jax.Array,
) -> jax.Array:
  """Runs the heads at the last accepted row.

  Args:
    model: the model.
    params: {"lm": ..., "heads": a tuple}, see `decode_params`.
    active: heads to run, those of offsets 2 .. active + 1.
    caches: of the active heads; holds the rows before `position_B` at least.
    tap_BD: tapped state of the last accepted row.
    position_B: its position.

  Returns:
    Logits [B, active, V], at least float32.
  """
  placement = Placement(
    position_B[:, None], masks.Tree(jnp.ones((1, 1), bool), position_B)
  )
  hidden: list[Any] = []
  for m in range(active):
    context = HeadContext(placement, caches[m] if caches else None)
    hidden.append(
      model.apply_head(
        params["heads"][m],
        params["lm"]["final_norm"],
        tap_BD[:, None],
        context,
      )
    )
  return model.head_logits(params, hidden)


@dataclasses.dataclass(frozen=True)
class Heads(Drafter):
  """Drafts from heads of the model, those of offsets 2 .. n + 1.

  Attributes:
    n: heads whose caches are kept; a tree may use fewer, so that programs with
      other trees can take turns.
  """

  n: int
  keeps_nothing: ClassVar[bool] = False

  def check(self, model: MultiTokenModel, tree: Tree) -> None:
    """Raises UserError for a tree deeper than the heads reach."""
    longest = model.heads.chain_length
    if max(tree.max_depth, self.n) > longest:
      raise UserError(
        f"tree: {tree.max_depth} drafts deep, but the heads of offsets "
        f"{model.heads.offsets} reach only {longest}; use a shorter one, "
        "or --mode next"
      )


class _Carry(NamedTuple):
  """What parallel heads keep.

  Attributes:
    caches: keys and values of each head.
    tap_BD: tapped state of the last accepted row.
  """

  caches: HeadCaches
  tap_BD: jax.Array


@dataclasses.dataclass(frozen=True)
class ParallelHeads(Heads):
  """Heads that all read the tap at the last accepted row."""

  def empty(self, model: MultiTokenModel, batch: int, positions: int) -> _Carry:
    """Returns empty caches."""
    return _Carry(
      empty_caches(model, self.n, batch, positions),
      jnp.zeros((batch, model.config.d_model), model.config.dtype),
    )

  def prefill(
    self, model: MultiTokenModel, params: Any, carry: _Carry, prompts: Prompts
  ) -> _Carry:
    """Writes the rows of the prompts."""
    last_B11 = (prompts.prompt_length_B - 1)[:, None, None]
    return _Carry(
      fill(
        model, params["heads"], carry.caches, prompts.tap_BTD,
        prompts.placement.positions_BT,
      ),
      jnp.take_along_axis(prompts.tap_BTD, last_B11, axis=1)[:, 0],
    )  # fmt: skip

  def propose(self, context: Context, carry: _Carry) -> Drafts:
    """Ranks what the heads say, one list of candidates per depth."""
    tree = context.tree
    if not tree.max_depth:
      return Drafts.none(context.root_B)
    # The last accepted row stands before the root.
    logits_BMV = draft_logits(
      context.model, context.params, tree.max_depth, carry.caches,
      carry.tap_BD, context.length_B - 1,
    )  # fmt: skip
    return context.rank(0, logits_BMV, tree.width).at_nodes(
      tree, context.root_B
    )

  def commit(
    self, model: MultiTokenModel, params: Any, carry: _Carry,
    committed: Committed,
  ) -> _Carry:  # fmt: skip
    """Writes the rows of the accepted path."""
    last_B11 = committed.path_BJ[:, -1][:, None, None]
    return _Carry(
      commit(
        model, params["heads"], carry.caches, committed.tap_BQD,
        committed.positions_BQ, committed.path_BJ, committed.length_B,
      ),
      # A path that was cut belongs to a row that has finished, whose drafts
      # nobody reads.
      jnp.take_along_axis(committed.tap_BQD, last_B11, axis=1)[:, 0],
    )  # fmt: skip
