"""Attention: `choose` decides who computes it, a file per implementation."""

from mtpjax.model.attention.key_values import KeyValues
from mtpjax.model.attention.module import Attention

__all__ = ["Attention", "KeyValues"]
