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

_LOOKUP_LENGTH = 4
_MERGED_LENGTH = 7
_MERGED_NGRAM = 8


@dataclasses.dataclass(frozen=True)
class Mode:
  """How a mode drafts.

  Attributes:
    tree: (model, settings) -> the tree it fills; None for a mode that is chosen
      by measurements, see `budget`.
    drafter: (model, settings, tree, heads to keep at least) -> what fills it.
    needs_heads: drafts with the head of offset 2 at least.
    takes_tree: `tree` of the settings says what its drafts look like.
    takes_length: `draft_length` says how many it drafts.
    lengths_tried: draft lengths that calibration decodes with, for drafters
      whose drafts no ranking of heads predicts.
  """

  tree: Callable[[MultiTokenModel, config_lib.Decode], Tree] | None
  drafter: Callable[[MultiTokenModel, config_lib.Decode, Tree, int], Drafter]
  needs_heads: bool = False
  takes_tree: bool = False
  takes_length: bool = False
  lengths_tried: tuple[int, ...] = ()


def n_drafting(model: MultiTokenModel, tree: Tree) -> int:
  """Returns how many heads reach into a tree."""
  return min(tree.max_depth, model.heads.chain_length)


def _no_drafts(model, settings, tree, n_kept) -> Drafter:
  return NoDrafts()


def _heads(model, settings, tree, n_kept) -> Drafter:
  return drafting_heads(model, max(tree.max_depth, n_kept))


def _lookup(model, settings, tree, n_kept) -> Drafter:
  return Lookup(settings.lookup_ngram)


def _merged(model, settings, tree, n_kept) -> Drafter:
  heads = drafting_heads(model, max(n_drafting(model, tree), n_kept))
  return Merged(heads, Lookup(max(settings.lookup_ngram, _MERGED_NGRAM)))


MODES: dict[str, Mode] = {
  "next": Mode(lambda model, settings: Tree.root(), _no_drafts),
  "chain": Mode(
    lambda model, settings: Tree.chain(
      settings.draft_length or model.heads.chain_length
    ),
    _heads, needs_heads=True, takes_length=True,
  ),
  "tree": Mode(
    lambda model, settings: parse_tree(settings.tree),
    _heads, needs_heads=True, takes_tree=True,
  ),
  "lookup": Mode(
    lambda model, settings: Tree.chain(
      settings.draft_length or _LOOKUP_LENGTH
    ),
    _lookup, takes_length=True, lengths_tried=(4, 7),
  ),
  "merged": Mode(
    lambda model, settings: Tree.chain(
      settings.draft_length or _MERGED_LENGTH
    ),
    _merged, needs_heads=True, takes_length=True, lengths_tried=(4, 7),
  ),
  "auto": Mode(None, _no_drafts),
}  # fmt: skip


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


def plan(
  model: MultiTokenModel, settings: config_lib.Decode
) -> tuple[Drafter, Tree]:
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
  assert mode.tree is not None, "chosen by measurements"
  tree = mode.tree(model, settings)
  return mode.drafter(model, settings, tree, 0), tree
