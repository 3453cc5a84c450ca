"""Quality per offset, and speed of decoding."""

from mtpjax.evals.decode_speed import ModeSpeed
from mtpjax.evals.decode_speed import measure as measure_decoding
from mtpjax.evals.prompts import held_out_requests
from mtpjax.evals.quality import make_evaluator

__all__ = [
  "ModeSpeed",
  "held_out_requests",
  "make_evaluator",
  "measure_decoding",
]
