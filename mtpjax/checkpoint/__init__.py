"""Work directories and checkpoints, verified when restored."""

from mtpjax.checkpoint.base import Base, model_on_base
from mtpjax.checkpoint.origin import imported_length
from mtpjax.checkpoint.places import places
from mtpjax.checkpoint.store import Store
from mtpjax.checkpoint.workdir import WorkDir

__all__ = [
  "Base", "Store", "WorkDir", "imported_length", "model_on_base", "places",
]  # fmt: skip
