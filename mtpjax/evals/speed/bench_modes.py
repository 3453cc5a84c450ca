"""Decoding modes by name, as programs to compare."""

from collections.abc import Sequence

from mtpjax import config as config_lib
from mtpjax.budget import Level, programs
from mtpjax.decode import Spec, Stages, Tree, parse_tree, verifiers
from mtpjax.decode.drafters import drafting_heads
from mtpjax.decode.modes import MODES, mode_of, require_heads
from mtpjax.errors import UserError
from mtpjax.evals.speed.unseen import Unseen
from mtpjax.heads import MultiTokenModel

DEFAULT_TREE = "4,2,1"
IDLE = "heads-idle"  # plain decoding, and the heads run: what they cost
NAMES = (*MODES, IDLE)


def default_modes(model: MultiTokenModel, verifier: str) -> tuple[str, ...]:
  """Returns the modes that a model can run, plain decoding first."""
  modes = ["next"]
  if model.heads.chain_length:
    modes += [IDLE, "chain"]
    settings = config_lib.Decode(verifier=verifier)
    modes += [] if verifiers.of(settings).chains_only else ["tree"]
  return (*modes, "lookup")


def mode_spec(
  model: MultiTokenModel,
  mode: str,
  stages: Stages,
  tree: str = "",
  verifier: str = "coupled",
  calibrated: Level | None = None,
) -> Spec:
  """Returns the program of a mode.

  Args:
    model: the model.
    mode: one of `NAMES`.
    stages: what the requests need.
    tree: of mode tree, see `parse_tree`; "" takes the part of `DEFAULT_TREE`
      that the heads reach.
    verifier: of drafts at a temperature.
    calibrated: of mode auto, what calibration chose, here without switching
      to another.

  Returns:
    The program.

  Raises:
    UserError: unknown, or not possible with these heads, tree and verifier.
  """
  judge = verifiers.of(config_lib.Decode(verifier=verifier))
  if mode == IDLE:
    n = require_heads(model, mode)
    idle = Unseen(drafting_heads(model, n), n)
    return Spec(model, Tree.root(), stages, idle, judge)
  takes_tree = mode in MODES and MODES[mode].takes_tree
  settings = config_lib.Decode(
    mode=mode, tree=(tree or DEFAULT_TREE) if takes_tree else "",
    verifier=verifier,
  )  # fmt: skip
  if mode_of(settings).tree is None:
    if calibrated is None:
      raise UserError(
        f"--modes: {mode} needs a work directory that `mtpjax calibrate` has "
        "seen"
      )
    [spec] = programs(model, settings, stages, [calibrated])
    return spec
  if takes_tree and not tree and model.heads.chain_length:
    cut = parse_tree(DEFAULT_TREE).cut(model.heads.chain_length)
    return Spec(model, cut, stages, verifier=judge)
  return Spec.for_mode(model, settings, stages)


def mode_specs(
  model: MultiTokenModel,
  modes: Sequence[str],
  stages: Stages,
  tree: str = "",
  verifier: str = "coupled",
  calibrated: Level | None = None,
) -> dict[str, Spec]:
  """Returns the programs of several modes; see `mode_spec`."""
  for mode in modes:
    if mode not in NAMES:
      raise UserError(f"--modes: {mode!r} is not one of {', '.join(NAMES)}")
  twice = [mode for mode in modes if list(modes).count(mode) > 1]
  if twice:
    raise UserError(f"--modes: {twice[0]} is there twice; name it once")
  if tree and not any(m in MODES and MODES[m].takes_tree for m in modes):
    raise UserError(
      f"--tree: {tree} is for mode tree, and --modes are {', '.join(modes)}"
    )
  return {
    mode: mode_spec(model, mode, stages, tree, verifier, calibrated)
    for mode in modes
  }
