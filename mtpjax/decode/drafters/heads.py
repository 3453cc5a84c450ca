"""Drafts from the model's own heads.

Head of offset d + 1, at the last accepted row, proposes the tokens of depth d.
Block heads keep caches of their own: keys and values are projections of the
tapped states, written for the prompt and for accepted rows; the query and the
MLP run at the last accepted row only.
"""

from typing import Any

import jax
import jax.numpy as jnp

from mtpjax.heads import HeadContext, MultiTokenModel
from mtpjax.model import KeyValues, cache, masks

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
  itself = jnp.ones((1, 1), bool)
  hidden: list[Any] = []
  for m in range(active):
    context = HeadContext(
      position_B[:, None],
      masks.tree(itself, position_B),
      caches[m] if caches else None,
    )
    hidden.append(
      model.apply_head(
        params["heads"][m],
        params["lm"]["final_norm"],
        tap_BD[:, None],
        context,
      )
    )
  return model.head_logits(params, hidden)
