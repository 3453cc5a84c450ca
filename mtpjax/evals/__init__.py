"""Quality per offset, and what decoding costs and gains."""

from mtpjax.evals.drafts.acceptance import Acceptance, count_acceptance
from mtpjax.evals.drafts.class_report import report_classes
from mtpjax.evals.prompt_classes import PROMPT_CLASSES
from mtpjax.evals.prompts import class_requests, held_out_requests
from mtpjax.evals.quality.offsets import make_evaluator
from mtpjax.evals.speed.bench_modes import default_modes, mode_spec, mode_specs
from mtpjax.evals.speed.decoding import ModeSpeed
from mtpjax.evals.speed.decoding import measure as measure_decoding
from mtpjax.evals.speed.pass_costs import (
  cost_trees,
  measure_draft_secs,
  measure_pass_costs,
)

__all__ = [
  "Acceptance",
  "ModeSpeed",
  "PROMPT_CLASSES",
  "class_requests",
  "cost_trees",
  "count_acceptance",
  "default_modes",
  "held_out_requests",
  "make_evaluator",
  "measure_decoding",
  "measure_draft_secs",
  "measure_pass_costs",
  "mode_spec",
  "mode_specs",
  "report_classes",
]
