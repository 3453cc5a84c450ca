"""Optimizer, state, step, loop and metrics."""

from mtpjax.train.hooks import Hook
from mtpjax.train.loop import Run, train
from mtpjax.train.metrics import flatten
from mtpjax.train.optimizer import make_optimizer, make_schedule
from mtpjax.train.program import Program
from mtpjax.train.reporter import (
  Reporter,
  about_schedule,
  describe_model,
  describe_run,
)
from mtpjax.train.state import TrainState, abstract_state, create_state
from mtpjax.train.states import RowsWithStates, cache_states
from mtpjax.train.step import StepMetrics, loss_and_gradients, make_train_step

__all__ = [
  "Hook",
  "Program",
  "Reporter",
  "RowsWithStates",
  "Run",
  "StepMetrics",
  "TrainState",
  "about_schedule",
  "abstract_state",
  "cache_states",
  "create_state",
  "describe_model",
  "describe_run",
  "flatten",
  "loss_and_gradients",
  "make_optimizer",
  "make_schedule",
  "make_train_step",
  "train",
]
