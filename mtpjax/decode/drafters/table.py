"""Drafters by name, and the one that reads a model's heads."""

from mtpjax.decode.drafters.drafter import Drafter
from mtpjax.decode.drafters.heads import Heads, ParallelHeads
from mtpjax.decode.drafters.lookup import Lookup
from mtpjax.decode.drafters.merged import Merged
from mtpjax.decode.drafters.nothing import NoDrafts
from mtpjax.decode.drafters.sequential import ChainedHeads
from mtpjax.heads import MultiTokenModel

DRAFTERS: dict[str, type[Drafter]] = {
  "none": NoDrafts,
  "parallel": ParallelHeads,
  "chain": ChainedHeads,
  "lookup": Lookup,
  "merged": Merged,
}


def drafting_heads(model: MultiTokenModel, n: int) -> Drafter:
  """Returns the drafter that reads the first n extra heads of a model."""
  kind = DRAFTERS[model.wiring.drafter]
  assert issubclass(kind, Heads)
  return kind(n)
