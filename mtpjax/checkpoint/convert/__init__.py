"""Checkpoints of other formats, in and out.

A format (`formats`) knows names, settings and what lies beside the weights; a
container (`containers`) holds named tensors. `layout` says how a parameter of
ours is stored elsewhere, `assemble` reads by it, and `disassemble` writes.
"""

from mtpjax.checkpoint.convert.format import Format, Source, Target, Written
from mtpjax.checkpoint.convert.formats import FORMATS

__all__ = ["FORMATS", "Format", "Source", "Target", "Written"]
