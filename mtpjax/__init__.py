"""Multi-token prediction for JAX and Flax.

load(workdir)             a trained model; `.generate(prompts)` continues text
config, losses, heads     what training is made of, for loops of one's own
"""

from typing import Any

from mtpjax._version import __version__
from mtpjax.errors import UserError

__all__ = ["Generation", "Loaded", "UserError", "__version__", "load"]


def __getattr__(name: str) -> Any:
  # JAX is imported when it is first needed: `mtpjax --help` is instant.
  if name in ("Generation", "Loaded", "load"):
    from mtpjax import api

    return getattr(api, name)
  raise AttributeError(f"module 'mtpjax' has no attribute {name!r}")
