"""Trees, drafts, verification and the decode loop."""

from mtpjax.decode.loop import Request, Result, generate
from mtpjax.decode.state import DecodeState, Spec, decode_params
from mtpjax.decode.tree import Tree

__all__ = [
  "DecodeState",
  "Request",
  "Result",
  "Spec",
  "Tree",
  "decode_params",
  "generate",
]
