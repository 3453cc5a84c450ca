"""Flax modules of the trunk, attention masks, keys and values."""

from mtpjax.model.attention import KeyValues
from mtpjax.model.block import Block
from mtpjax.model.probe import gradient_probe
from mtpjax.model.trunk import Trunk, TrunkOutput, unembed, unstack_layers

__all__ = [
  "Block",
  "KeyValues",
  "Trunk",
  "TrunkOutput",
  "gradient_probe",
  "unembed",
  "unstack_layers",
]
