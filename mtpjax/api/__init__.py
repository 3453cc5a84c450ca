"""For use as a library: load a run and generate with it.

The loss for somebody else's training loop is `mtpjax.losses`; the README shows
both at work.
"""

from mtpjax.api.generation import Decoding, Generation
from mtpjax.api.loaded import Loaded, load
from mtpjax.api.prompts import Prompt
from mtpjax.api.settings import override_settings
from mtpjax.api.speed import speed

__all__ = [
  "Decoding",
  "Generation",
  "Loaded",
  "Prompt",
  "load",
  "override_settings",
  "speed",
]
