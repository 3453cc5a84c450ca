"""What a compiled decode program depends on, besides array shapes."""

import dataclasses

from mtpjax import config as config_lib
from mtpjax.decode import verifiers
from mtpjax.decode.controls import Stages
from mtpjax.decode.drafters import Drafter, NoDrafts, drafting_heads
from mtpjax.decode.modes import plan
from mtpjax.decode.tree import Tree
from mtpjax.decode.verifiers import Coupled, Verifier
from mtpjax.errors import UserError
from mtpjax.heads import MultiTokenModel

_NO_DRAFTS = NoDrafts()
_COUPLED = Coupled()


@dataclasses.dataclass(frozen=True)
class Spec:
  """A decode program; hashable.

  Attributes:
    model: the model.
    tree: the drafts of every pass.
    stages: of the logits pipeline.
    drafter: fills the tree; by default the model's heads, where there is
      something to fill.
    verifier: of rows at a temperature.
    room: positions a cache has beyond the longest text, at least one more than
      the tree is deep.
  """

  model: MultiTokenModel
  tree: Tree
  stages: Stages = Stages()
  drafter: Drafter = _NO_DRAFTS
  verifier: Verifier = _COUPLED
  room: int = 0

  def __post_init__(self):
    if self.tree.max_depth and self.drafter == _NO_DRAFTS:
      heads = drafting_heads(self.model, self.tree.max_depth)
      object.__setattr__(self, "drafter", heads)
    self.drafter.check(self.model, self.tree)
    if self.tree.width > self.model.config.vocab_size:
      raise UserError(
        f"tree: rank {self.tree.width - 1} is beyond the vocabulary of "
        f"{self.model.config.vocab_size}"
      )
    self.verifier.check(self.tree)
    object.__setattr__(self, "room", max(self.room, self.tree.max_depth + 1))

  @property
  def draws_apart(self) -> bool:
    """Are drafts drawn with noise of their own, their probabilities known?"""
    return self.stages.is_sampled and self.verifier.needs_draft_probs

  @property
  def n_ranked(self) -> int:
    """Depths whose drafts go through the logits pipeline."""
    return self.drafter.n_ranked(self.tree)

  @classmethod
  def for_mode(
    cls, model: MultiTokenModel, settings: config_lib.Decode, stages: Stages
  ) -> "Spec":
    """Returns the program of a decoding mode; see `modes.plan`.

    Args:
      model: the model.
      settings: mode, tree, verifier and what belongs to them.
      stages: what the requests need.

    Returns:
      The program.

    Raises:
      UserError: no head to draft with, a tree that the heads don't reach.
    """
    drafter, tree = plan(model, settings)
    return cls(model, tree, stages, drafter, verifiers.of(settings))
