"""Work directories and checkpoints, verified when restored."""

from mtpjax.checkpoint.store import Store
from mtpjax.checkpoint.workdir import WorkDir

__all__ = ["Store", "WorkDir"]
