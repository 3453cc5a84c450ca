"""For use as a library: load a run."""

import dataclasses
import pathlib
from typing import Any

import jax

from mtpjax import parallel
from mtpjax.checkpoint import Store, WorkDir
from mtpjax.config import Config
from mtpjax.data import Tokenizer, load_tokenizer
from mtpjax.heads import MultiTokenModel


@dataclasses.dataclass(frozen=True)
class Loaded:
  """A trained model, ready to use.

  Attributes:
    config: the experiment it was trained with.
    model: applies the parameters.
    params: {"lm": ..., "heads": ...}.
    tokenizer: the run's own.
    step: completed steps of the checkpoint.
  """

  config: Config
  model: MultiTokenModel
  params: Any
  tokenizer: Tokenizer
  step: int


def load(
  workdir: str | pathlib.Path,
  step: int | None = None,
  mesh: jax.sharding.Mesh | None = None,
) -> Loaded:
  """Loads the parameters of a run.

  Args:
    workdir: a work directory of `mtpjax train`.
    step: the checkpoint; None takes the latest sound one.
    mesh: where parameters go; None takes one device.

  Returns:
    A `Loaded`.

  Raises:
    UserError: no such work directory or checkpoint, or it is damaged.
  """
  place = WorkDir(workdir)
  config = place.load_config()
  mesh = parallel.single_device_mesh() if mesh is None else mesh
  model = MultiTokenModel(config.model, config.heads, mesh)
  tokenizer = load_tokenizer(
    place.tokenizer_spec(config), config.data.bos_token, config.data.eos_tokens
  )
  boxes = model.abstract()
  abstract = jax.tree.map(
    lambda leaf, sharding: jax.ShapeDtypeStruct(
      leaf.shape, leaf.dtype, sharding=sharding
    ),
    parallel.unbox(boxes),
    parallel.shardings(boxes, mesh),
  )
  with Store(place.checkpoints) as store:
    state, metadata = store.restore({"params": abstract}, step, partial=True)
  return Loaded(config, model, state["params"], tokenizer, metadata["step"])
