"""What trains a configuration on a mesh; needs no data."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import optax

from mtpjax import config as config_lib
from mtpjax import parallel
from mtpjax.heads import EVERYTHING, MultiTokenModel, Part, Trained
from mtpjax.losses import Readout, Schedule, model_loss
from mtpjax.train.optimizer import make_optimizer
from mtpjax.train.state import TrainState, abstract_state, create_state
from mtpjax.train.step import Batch, Objective, StepMetrics, make_train_step


@dataclasses.dataclass(frozen=True)
class Program:
  """Model, optimizer, state and step of a configuration.

  Attributes:
    config: the experiment; its vocabulary size is known.
    model: the model.
    optimizer: of the parts that learn.
    trained: the parts that learn.
  """

  config: config_lib.Config
  model: MultiTokenModel
  optimizer: optax.GradientTransformation
  trained: Trained

  @classmethod
  def build(
    cls,
    config: config_lib.Config,
    mesh: jax.sharding.Mesh,
    trained: Trained = EVERYTHING,
    parts: tuple[Part, ...] = (),
  ) -> "Program":
    """Puts the parts together; makes no array.

    Args:
      config: the experiment; its vocabulary size is known.
      mesh: what everything is laid out on.
      trained: the parts of the parameters that learn.
      parts: what the parameters have beside "lm" and "heads".

    Returns:
      The program.

    Raises:
      UserError: a model that cannot be.
    """
    model = MultiTokenModel(config.model, config.heads, mesh, parts=parts)
    return cls(config, model, _optimizer(config.optim, model, trained), trained)

  def abstract_state(self) -> TrainState:
    """Returns shapes, dtypes and shardings of the state, for a restore."""
    return abstract_state(self.model, self.optimizer, self.trained)

  def abstract_frozen(self) -> dict[str, Any]:
    """Returns the same of the parts that do not learn."""
    boxes = self.trained.frozen(self.model.abstract())
    return parallel.abstract_arrays(boxes, self.model.mesh)

  def create_state(self, given: Mapping[str, Any] | None = None) -> TrainState:
    """Initialises the state of step 0, sharded from the start.

    Args:
      given: pretrained parts, such as "lm"; the others are new.
    """
    key = jax.random.key(self.config.train.seed)
    return create_state(self.model, self.optimizer, key, given, self.trained)

  def step(
    self,
    frozen: Mapping[str, Any] | None = None,
    objective: Objective = model_loss,
    schedule: Schedule | None = None,
    readouts: tuple[Readout, ...] = (),
  ) -> Callable[[TrainState, Batch], tuple[TrainState, StepMetrics]]:
    """Returns the jitted step; see `make_train_step`.

    Args:
      frozen: the parts that do not learn.
      objective: what is minimised.
      schedule: weights and active offsets by step; None takes `loss.weights`.
      readouts: what else to report per target, by name.
    """
    return make_train_step(
      self.model, self.optimizer, self.config, frozen, objective=objective,
      schedule=schedule, readouts=readouts,
    )  # fmt: skip


# Equal programs have one optimizer, and so one compiled step: a second run in a
# process does not compile again.
@functools.lru_cache(maxsize=8)
def _optimizer(
  optim: config_lib.Optim, model: MultiTokenModel, trained: Trained
) -> optax.GradientTransformation:
  return make_optimizer(optim, trained.of(model.abstract()))
