"""Optimizer, state, step, loop and metrics."""

from mtpjax.train.hooks import Hook
from mtpjax.train.loop import Run, train
from mtpjax.train.metrics import (
  JsonLines,
  TensorBoard,
  flatten,
  per_target_names,
)
from mtpjax.train.optimizer import make_optimizer, make_schedule
from mtpjax.train.program import Program
from mtpjax.train.state import TrainState, abstract_state, create_state
from mtpjax.train.states import RowsWithStates, cache_states
from mtpjax.train.step import StepMetrics, loss_and_gradients, make_train_step

__all__ = [
  "Hook",
  "JsonLines",
  "Program",
  "RowsWithStates",
  "Run",
  "StepMetrics",
  "TensorBoard",
  "TrainState",
  "abstract_state",
  "cache_states",
  "create_state",
  "flatten",
  "loss_and_gradients",
  "make_optimizer",
  "make_schedule",
  "make_train_step",
  "per_target_names",
  "train",
]
