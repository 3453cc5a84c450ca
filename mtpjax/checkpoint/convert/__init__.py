"""Checkpoints of other formats, in and out."""

from mtpjax.checkpoint.convert.gguf_file import open_gguf
from mtpjax.checkpoint.convert.hugging_face import open_hf
from mtpjax.checkpoint.convert.medusa import (
  MedusaHeads,
  read_medusa,
  write_medusa,
)
from mtpjax.checkpoint.convert.meta import open_meta
from mtpjax.checkpoint.convert.source import NO_HEADS, Source

__all__ = [
  "MedusaHeads",
  "NO_HEADS",
  "Source",
  "open_gguf",
  "open_hf",
  "open_meta",
  "read_medusa",
  "write_medusa",
]
