"""Where drafts come from: frozen values with one protocol, `Drafter`."""

from mtpjax.decode.drafters.drafter import (
  Committed,
  Context,
  Drafter,
  Prompts,
)
from mtpjax.decode.drafters.drafts import Candidates, Drafts
from mtpjax.decode.drafters.keeping import Keeping
from mtpjax.decode.drafters.lookup import Lookup
from mtpjax.decode.drafters.merged import Merged
from mtpjax.decode.drafters.nothing import NoDrafts
from mtpjax.decode.drafters.table import DRAFTERS, drafting_heads

__all__ = [
  "DRAFTERS",
  "Candidates",
  "Committed",
  "Context",
  "Drafter",
  "Drafts",
  "Keeping",
  "Lookup",
  "Merged",
  "NoDrafts",
  "Prompts",
  "drafting_heads",
]
