"""Kinds of heads, all with one contract, and the model they complete."""

from mtpjax.heads.context import HeadContext
from mtpjax.heads.multi_token import HEADS, MultiTokenModel

__all__ = ["HEADS", "HeadContext", "MultiTokenModel"]
