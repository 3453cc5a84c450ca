"""Kinds of heads, all with one contract, and the model they complete."""

from mtpjax.heads.context import HeadContext
from mtpjax.heads.flops import count_params, train_flops_per_token
from mtpjax.heads.kinds import HEADS
from mtpjax.heads.multi_token import MultiTokenModel
from mtpjax.heads.parts import EVERYTHING, Part, Trained

__all__ = [
  "EVERYTHING",
  "HEADS",
  "HeadContext",
  "MultiTokenModel",
  "Part",
  "Trained",
  "count_params",
  "train_flops_per_token",
]
