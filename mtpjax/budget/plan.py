"""Programs that can take turns on one state."""

from collections.abc import Sequence

from mtpjax import config as config_lib
from mtpjax import decode
from mtpjax.budget.levels import Level
from mtpjax.decode import verifiers
from mtpjax.decode.controls import Stages
from mtpjax.decode.drafters import Drafter, Keeping, drafting_heads
from mtpjax.decode.modes import n_drafting
from mtpjax.decode.spec import Spec
from mtpjax.heads import MultiTokenModel


def programs(
  model: MultiTokenModel,
  settings: config_lib.Decode,
  stages: Stages,
  levels: Sequence[Level],
) -> list[Spec]:
  """Returns programs that can take turns on one state.

  Args:
    model: the model.
    settings: verifier and what belongs to it.
    stages: what the requests need.
    levels: drafters and trees to switch between.

  Returns:
    A program per level. All of them keep the caches of all heads that one
    of them drafts with, so that drafts are right after any switch.

  Raises:
    UserError: a tree that the heads don't reach or the verifier can't take.
  """
  modes = [decode.MODES[level.mode] for level in levels]
  n_kept = max(
    n_drafting(model, level.tree) if mode.needs_heads else 0
    for mode, level in zip(modes, levels, strict=True)
  )
  # Plain decoding is a level of the heads' mode too, with none of them kept.
  kept: tuple[Drafter, ...] = ()
  if any(mode.needs_heads for mode in modes):
    kept = (drafting_heads(model, n_kept),)
  room = 1 + max(level.tree.max_depth for level in levels)
  return [
    Spec(
      model, level.tree, stages,
      Keeping(mode.drafter(model, settings, level.tree, n_kept), kept),
      verifiers.of(settings), room,
    )
    for mode, level in zip(modes, levels, strict=True)
  ]  # fmt: skip
