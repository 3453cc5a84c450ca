"""Trees, drafts, verification and the decode loop."""

from mtpjax.decode import verifiers
from mtpjax.decode.controls import Stages
from mtpjax.decode.counts import committed, tokens_per_pass
from mtpjax.decode.loop import generate
from mtpjax.decode.modes import MODES, mode_of
from mtpjax.decode.requests import Request, Result
from mtpjax.decode.spec import Spec
from mtpjax.decode.state import DecodeState, decode_params
from mtpjax.decode.tree import Tree
from mtpjax.decode.tree_files import parse_tree

__all__ = [
  "MODES",
  "DecodeState",
  "Request",
  "Result",
  "Spec",
  "Stages",
  "Tree",
  "committed",
  "decode_params",
  "generate",
  "mode_of",
  "parse_tree",
  "tokens_per_pass",
  "verifiers",
]
