"""Kinds of heads, all with one contract, and the model they complete."""

from mtpjax.heads.context import HeadContext
from mtpjax.heads.flops import count_params, train_flops_per_token
from mtpjax.heads.multi_token import HEADS, MultiTokenModel

__all__ = [
  "HEADS",
  "HeadContext",
  "MultiTokenModel",
  "count_params",
  "train_flops_per_token",
]
