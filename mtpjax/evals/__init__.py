"""Quality per offset."""

from mtpjax.evals.quality import make_evaluator

__all__ = ["make_evaluator"]
