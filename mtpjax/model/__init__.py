"""Flax modules of the trunk, attention masks, keys and values."""

from mtpjax.model.attention import KeyValues
from mtpjax.model.attention.choose import chosen_for
from mtpjax.model.block import Block
from mtpjax.model.linear import transpose_kernels
from mtpjax.model.placement import Placement
from mtpjax.model.probe import gradient_probe
from mtpjax.model.trunk import (
  Trunk,
  TrunkOutput,
  transpose_unembedding,
  unembed,
  unembedding_of,
  unstack_layers,
)

__all__ = [
  "Block",
  "KeyValues",
  "Placement",
  "Trunk",
  "TrunkOutput",
  "chosen_for",
  "gradient_probe",
  "transpose_kernels",
  "transpose_unembedding",
  "unembed",
  "unembedding_of",
  "unstack_layers",
]
