"""Decoding modes: names for a drafter with a tree."""

import dataclasses
from collections.abc import Callable

from mtpjax import config as config_lib
from mtpjax.decode.drafters import (
  Drafter,
  Lookup,
  Merged,
  NoDrafts,
  drafting_heads,
)
from mtpjax.decode.tree import Tree
from mtpjax.decode.tree_files import parse_tree
from mtpjax.errors import UserError
from mtpjax.heads import MultiTokenModel

Plan = tuple[Drafter, Tree]
_LOOKUP_LENGTH = 4
_MERGED_LENGTH = 4
_MERGED_NGRAM = 8


@dataclasses.dataclass(frozen=True)
class Mode:
  """How a mode drafts.

  Attributes:
    make: (model, settings) -> the drafter and its tree; None for a mode that
      is chosen by measurements, see `budget`.
    needs_heads: drafts with the head of offset 2 at least.
    takes_tree: `tree` says what its drafts look like.
    takes_length: `draft_length` says how many it drafts.
  """

  make: Callable[[MultiTokenModel, config_lib.Decode], Plan] | None
  needs_heads: bool = False
  takes_tree: bool = False
  takes_length: bool = False


def _next(model: MultiTokenModel, settings: config_lib.Decode) -> Plan:
  return NoDrafts(), Tree.root()


def _chain(model: MultiTokenModel, settings: config_lib.Decode) -> Plan:
  tree = Tree.chain(settings.draft_length or model.heads.chain_length)
  return drafting_heads(model, tree.max_depth), tree


def _tree(model: MultiTokenModel, settings: config_lib.Decode) -> Plan:
  tree = parse_tree(settings.tree)
  return drafting_heads(model, tree.max_depth), tree


def _lookup(model: MultiTokenModel, settings: config_lib.Decode) -> Plan:
  length = settings.draft_length or _LOOKUP_LENGTH
  return Lookup(settings.lookup_ngram), Tree.chain(length)


def _merged(model: MultiTokenModel, settings: config_lib.Decode) -> Plan:
  tree = Tree.chain(settings.draft_length or _MERGED_LENGTH)
  reach = min(tree.max_depth, model.heads.chain_length)
  lookup = Lookup(max(settings.lookup_ngram, _MERGED_NGRAM))
  return Merged(drafting_heads(model, reach), lookup), tree


MODES: dict[str, Mode] = {
  "next": Mode(_next),
  "chain": Mode(_chain, needs_heads=True, takes_length=True),
  "tree": Mode(_tree, needs_heads=True, takes_tree=True),
  "lookup": Mode(_lookup, takes_length=True),
  "merged": Mode(_merged, needs_heads=True, takes_length=True),
  "auto": Mode(None),
}


def mode_of(settings: config_lib.Decode) -> Mode:
  """Returns the mode of settings.

  Raises:
    UserError: unknown, or with settings that are another mode's.
  """
  name = settings.mode
  if name not in MODES:
    raise UserError(f"decode.mode: {name!r} is not one of {', '.join(MODES)}")
  mode = MODES[name]
  problem = ""
  if settings.tree and not mode.takes_tree:
    problem = f"tree is for mode {_with('takes_tree')}, not {name}"
  elif mode.takes_tree and not settings.tree:
    problem = f"mode {name} needs a tree, as --tree medusa-63 or --tree 4,2,1"
  elif settings.draft_length and not mode.takes_length:
    problem = f"draft_length is for {_with('takes_length')}, not {name}"
  if problem:
    raise UserError(f"decode: {problem}")
  return mode


def _with(attribute: str) -> str:
  return " and ".join(
    n for n, mode in MODES.items() if getattr(mode, attribute)
  )


def require_heads(model: MultiTokenModel, mode: str) -> int:
  """Returns how many heads a mode can draft with; UserError for none."""
  if not model.heads.chain_length:
    raise UserError(
      f"mode: {mode!r} drafts with the head of offset 2, and heads.offsets are "
      f"{model.heads.offsets}; use mode next or lookup"
    )
  return model.heads.chain_length


def plan(model: MultiTokenModel, settings: config_lib.Decode) -> Plan:
  """Returns the drafter and the tree of a mode; not of `auto`, see `budget`.

  Args:
    model: the model.
    settings: mode, tree, lengths.

  Returns:
    The drafter, and the tree it fills in every pass.

  Raises:
    UserError: no head to draft with, or settings that do not belong together.
  """
  mode = mode_of(settings)
  if mode.needs_heads:
    require_heads(model, settings.mode)
  assert mode.make is not None, "chosen by measurements"
  return mode.make(model, settings)
