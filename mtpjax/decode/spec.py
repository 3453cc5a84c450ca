"""What a compiled decode program depends on, besides array shapes."""

import dataclasses

from mtpjax import config as config_lib
from mtpjax.decode import verifiers
from mtpjax.decode.controls import Stages
from mtpjax.decode.tree import Tree
from mtpjax.decode.tree_files import parse_tree
from mtpjax.decode.verifiers import Coupled, Verifier
from mtpjax.errors import UserError
from mtpjax.heads import MultiTokenModel

DRAFTERS = ("heads", "lookup", "idle")
_LOOKUP_LENGTH = 4


@dataclasses.dataclass(frozen=True)
class Spec:
  """A decode program; hashable.

  Attributes:
    model: the model.
    tree: the drafts of every pass.
    stages: of the logits pipeline.
    drafter: "heads", "lookup" (n-grams of the text), or "idle": the heads run
      and nobody looks, to measure what they cost.
    verifier: of rows at a temperature.
    lookup_ngram: longest n-gram that lookup searches for.
    kept_heads: heads whose caches are kept, at least those that this program
      drafts with; more, so that a later program can draft with them.
    room: rows a cache has beyond the longest text, at least one more than the
      tree is deep.
  """

  model: MultiTokenModel
  tree: Tree
  stages: Stages = Stages()
  drafter: str = "heads"
  verifier: Verifier = Coupled()
  lookup_ngram: int = 3
  kept_heads: int = 0
  room: int = 0

  def __post_init__(self):
    longest = self.model.heads.chain_length
    if self.drafter == "heads" and self.tree.max_depth > longest:
      raise UserError(
        f"tree: {self.tree.max_depth} drafts deep, but the heads of offsets "
        f"{self.model.heads.offsets} reach only {longest}; use a shorter one, "
        "or --mode next"
      )
    if self.tree.width > self.model.config.vocab_size:
      raise UserError(
        f"tree: rank {self.tree.width - 1} is beyond the vocabulary of "
        f"{self.model.config.vocab_size}"
      )
    if self.drafter == "lookup" and not self.tree.is_chain:
      raise UserError(
        f"tree: lookup drafts a chain, not {self.tree.size} nodes in branches"
      )
    self.verifier.check(self.tree)
    kept = max(self.kept_heads, self.drafting_heads)
    object.__setattr__(self, "kept_heads", kept)
    object.__setattr__(self, "room", max(self.room, self.tree.max_depth + 1))

  @property
  def draws_apart(self) -> bool:
    """Are drafts drawn with noise of their own, their probabilities known?"""
    return self.stages.is_sampled and self.verifier.needs_draft_probs

  @property
  def drafting_heads(self) -> int:
    """Heads that run in every pass: those of offsets 2 .. this + 1."""
    if self.drafter == "idle":
      return self.model.heads.chain_length
    return self.tree.max_depth if self.drafter == "heads" else 0

  @classmethod
  def for_mode(
    cls, model: MultiTokenModel, settings: config_lib.Decode, stages: Stages
  ) -> "Spec":
    """Returns the program of a decoding mode; not of `auto`, see `budget`.

    Args:
      model: the model.
      settings: mode, tree, verifier and what belongs to them.
      stages: what the requests need.

    Returns:
      The program.

    Raises:
      UserError: no head to draft with, a tree that the heads don't reach.
    """
    longest = model.heads.chain_length
    needs_heads = settings.mode in ("heads-idle", "chain", "tree")
    if needs_heads and not longest:
      raise UserError(
        f"mode: {settings.mode!r} drafts with the head of offset 2, and "
        f"heads.offsets are {model.heads.offsets}; use mode next or lookup"
      )
    drafter, tree = "heads", Tree.root()
    if settings.mode == "heads-idle":
      drafter = "idle"
    elif settings.mode == "chain":
      tree = Tree.chain(settings.draft_length or longest)
    elif settings.mode == "tree":
      tree = parse_tree(settings.tree)
    elif settings.mode == "lookup":
      drafter = "lookup"
      tree = Tree.chain(settings.draft_length or _LOOKUP_LENGTH)
    elif settings.mode != "next":
      raise UserError(
        f"mode: {settings.mode!r} is not one of "
        f"{', '.join(config_lib.DECODE_MODES)}"
      )
    return cls(
      model, tree, stages, drafter, verifiers.of(settings),
      settings.lookup_ngram,
    )  # fmt: skip
