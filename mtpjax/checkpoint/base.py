"""The pretrained model that heads are trained on, and are refused without.

Heads on a frozen base are saved without a second copy of it. Their checkpoints
refer to it by a digest of what its own checkpoint holds, so that heads are
never put on other weights than those they were trained on.
"""

import dataclasses
import hashlib
import pathlib
from collections.abc import Callable
from typing import Any

import jax

from mtpjax import config as config_lib
from mtpjax.checkpoint import digest
from mtpjax.checkpoint.places import places
from mtpjax.checkpoint.store import Store
from mtpjax.checkpoint.workdir import WorkDir
from mtpjax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Base:
  """A checkpoint of a work directory that holds a complete model.

  Attributes:
    place: the work directory.
    config: its configuration.
    step: the checkpoint.
    digest: SHA-256 (hex) over those of its files, the configuration among them.
  """

  place: WorkDir
  config: config_lib.Config
  step: int
  digest: str

  @classmethod
  def open(
    cls,
    path: str | pathlib.Path,
    step: int | None = None,
    named: str = "base.path",
  ) -> "Base":
    """Finds a base; reads no weights.

    Args:
      path: a work directory of `mtpjax convert` or `mtpjax train`.
      step: the checkpoint; None takes the latest.
      named: what errors call it: the option or argument that says it.

    Returns:
      The base.

    Raises:
      UserError: no such directory or checkpoint, it has no digest, or it is
        itself built on a frozen base.
    """
    place = WorkDir(path)
    if not place.path.is_dir():
      raise UserError(
        f"{named}: {str(path)!r} is not there; give the work directory of "
        "its `mtpjax convert` or `mtpjax train`"
      )
    config = place.load_config()
    if config.base.is_frozen:
      raise UserError(
        f"{named}: {str(path)!r} holds heads without a model of its own; "
        f"give its base, {config.base.path!r}"
      )
    with Store(place.checkpoints) as store:
      steps = store.steps()
    if not steps or (step is not None and step not in steps):
      there = ", ".join(map(str, steps)) or "none"
      raise UserError(
        f"{named}: {str(path)!r} has no checkpoint of step "
        f"{'any' if step is None else step} (there: {there})"
      )
    step = steps[-1] if step is None else step
    file = place.checkpoints / str(step) / digest.NAME
    if not file.is_file():
      raise UserError(
        f"{named}: {file.parent} has no {digest.NAME} to know it by; save or "
        "convert it anew"
      )
    return cls(
      place, config, step, hashlib.sha256(file.read_bytes()).hexdigest()
    )

  @classmethod
  def find(
    cls,
    path: str | pathlib.Path,
    reference: dict[str, Any],
    heads: pathlib.Path,
    given: str | pathlib.Path = "",
  ) -> "Base":
    """Finds the base that heads were trained on, wherever it lies by now.

    Args:
      path: as the heads' run wrote it down; see `places` for where it may be.
      reference: from the heads' checkpoint.
      heads: their work directory.
      given: where it is; empty looks for it.

    Returns:
      The base, the very one.

    Raises:
      UserError: it is not found, or only others are.
    """
    if given:
      base = cls.open(given, reference["step"])
      base.require(reference, heads)
      return base
    changed: UserError | None = None
    for place in places(path, heads):
      try:
        base = cls.open(place, reference["step"])
      except UserError:
        continue  # it has the name of the base, and is something else
      try:
        base.require(reference, heads)
        return base
      except UserError as error:
        changed = changed or error
    if changed is not None:
      raise changed
    raise UserError(
      f"base.path: {str(path)!r} is not there, nor near the heads in {heads}, "
      "which were trained on it; say where it is with --base.path (from "
      "Python: load(..., base=...))"
    )

  @property
  def reference(self) -> dict[str, Any]:
    """What the checkpoint of heads keeps of the base."""
    return {"step": self.step, "digest": self.digest}

  def require(self, reference: dict[str, Any], heads: pathlib.Path) -> None:
    """Checks that this is the base that heads were trained on.

    Args:
      reference: from their checkpoint.
      heads: their work directory, to be named.

    Raises:
      UserError: it is another one.
    """
    if reference["digest"] != self.digest:
      raise UserError(
        f"base {self.place.path}: changed after the heads in {heads} were "
        f"trained (digest {reference['digest'][:12]} then, {self.digest[:12]} "
        "now); restore the old one, say with --base.path where it is, or "
        "train the heads anew"
      )

  def restore(self, abstract_lm: Any, log: Callable[[str], None]) -> Any:
    """Reads the model, after verifying its files.

    Args:
      abstract_lm: shapes, dtypes and shardings of params["lm"].
      log: gets warnings, a line each.

    Returns:
      The parameters params["lm"].

    Raises:
      UserError: damaged, or of another shape.
    """
    with Store(self.place.checkpoints) as store:
      state, metadata = store.restore(
        {"params": {"lm": abstract_lm}}, self.step, partial=True, log=log
      )
    self.place.require_own_checkpoint(self.config, metadata)
    return jax.block_until_ready(state["params"]["lm"])


def model_on_base(
  config: config_lib.Config, base: Base, trunk_layers: int
) -> config_lib.Config:
  """Returns the configuration with the model section of its base.

  Args:
    config: an experiment that names a base; its own model section must be left
      alone, or say the same.
    base: the base.
    trunk_layers: layers that the base really has.

  Returns:
    The configuration; how the model is run (`remat`, `attention`) stays its
    own.

  Raises:
    UserError: the experiment asks for another model; names a field.
  """
  own = {
    field.name: getattr(config.model, field.name)
    for field in dataclasses.fields(config.model)
    if field.metadata["may_change"]
  }
  wanted = dataclasses.replace(base.config.model, n_layers=trunk_layers, **own)
  plain = config_lib.Model()
  for field in dataclasses.fields(config.model):
    here, there, default = (
      getattr(model, field.name) for model in (config.model, wanted, plain)
    )
    if here not in (there, default):
      raise UserError(
        f"model.{field.name}: {here!r} differs from base.path = "
        f"{config.base.path!r}, which has {there!r}; leave it out"
      )
  return dataclasses.replace(config, model=wanted)
