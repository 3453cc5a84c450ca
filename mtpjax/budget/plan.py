"""Programs that can take turns on one state."""

from collections.abc import Sequence

from mtpjax import config as config_lib
from mtpjax.budget.levels import Level
from mtpjax.decode import verifiers
from mtpjax.decode.controls import Stages
from mtpjax.decode.drafters import drafting_heads
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
    levels: trees to switch between.

  Returns:
    A program per level. All of them keep the caches of all heads that one
    of them drafts with, so that drafts are right after any switch.

  Raises:
    UserError: a tree that the heads don't reach or the verifier can't take.
  """
  deepest = max(level.tree.max_depth for level in levels)
  drafter = drafting_heads(model, deepest)
  return [
    Spec(
      model, level.tree, stages, drafter, verifiers.of(settings), deepest + 1
    )
    for level in levels
  ]  # fmt: skip
