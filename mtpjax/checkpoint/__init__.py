"""Checkpoints: saved while training goes on, verified when restored."""

from mtpjax.checkpoint.store import Store

__all__ = ["Store"]
