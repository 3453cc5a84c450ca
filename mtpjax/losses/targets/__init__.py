"""What the offsets learn: one file for each target, listed here."""

from mtpjax import config as config_lib
from mtpjax.errors import UserError
from mtpjax.losses.targets.labels import Labels
from mtpjax.losses.targets.target import Lesson, Source, Target, TargetIds
from mtpjax.losses.targets.targets import Targets, look_ahead, shift_targets
from mtpjax.losses.targets.teacher_argmax import TeacherArgmax
from mtpjax.losses.targets.teacher_soft import TeacherSoft

TARGETS: dict[str, Target] = {
  "labels": Labels(),
  "teacher_argmax": TeacherArgmax(),
  "teacher_soft": TeacherSoft(),
}


def target_of(loss: config_lib.Loss) -> Target:
  """Returns the target that `loss.targets` names.

  Raises:
    UserError: there is none of this name.
  """
  if loss.targets not in TARGETS:
    raise UserError(
      f"loss.targets: {loss.targets!r} is not one of {', '.join(TARGETS)}"
    )
  return TARGETS[loss.targets]


def check_target(config: config_lib.Config) -> None:
  """Checks that an experiment has what its target needs.

  Raises:
    UserError: there is no such target, or no base where it needs one.
  """
  if target_of(config.loss).needs_base and not config.base.path:
    raise UserError(
      f"loss.targets: {config.loss.targets!r} needs a pretrained teacher; give "
      "--base.path"
    )


__all__ = [
  "TARGETS",
  "Labels",
  "Lesson",
  "Source",
  "Target",
  "TargetIds",
  "Targets",
  "check_target",
  "look_ahead",
  "shift_targets",
  "target_of",
]
