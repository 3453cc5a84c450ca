"""AdamW, its schedule, and which parameters decay."""

from typing import Any

import jax
import optax

from mtpjax import config as config_lib
from mtpjax import parallel

_STACKED = ("layers", "offsets")


def make_schedule(config: config_lib.Optim) -> optax.Schedule:
  """Linear warm-up from 0, cosine to the last rate, which then holds."""
  return optax.warmup_cosine_decay_schedule(
    init_value=0.0,
    peak_value=config.peak_lr,
    warmup_steps=config.warmup_steps,
    decay_steps=config.decay_steps,
    end_value=config.peak_lr * config.final_lr_fraction,
  )


def decay_mask(boxes: Any) -> Any:
  """Says which parameters decay: matrices, not norms or biases.

  Args:
    boxes: the tree of `Logical` boxes around the parameters.

  Returns:
    A tree of bools, True where a layer's own axes are two or more.
  """

  def is_matrix(names: tuple[str, ...]) -> bool:
    return len([name for name in names if name not in _STACKED]) >= 2

  return jax.tree.map(
    lambda box: is_matrix(box.names), boxes, is_leaf=parallel.is_box
  )


def make_optimizer(
  config: config_lib.Optim, boxes: Any
) -> optax.GradientTransformation:
  """Clips by the global norm, then AdamW (Loshchilov & Hutter 2019).

  Args:
    config: the hyperparameters.
    boxes: the tree of `Logical` boxes around the parameters.

  Returns:
    The optax transformation.
  """
  clip = (
    optax.clip_by_global_norm(config.clip_norm)
    if config.clip_norm
    else optax.identity()
  )
  adamw = optax.adamw(
    make_schedule(config),
    b1=config.b1,
    b2=config.b2,
    eps=config.eps,
    weight_decay=config.weight_decay,
    mask=decay_mask(boxes),
  )
  return optax.chain(clip, adamw)
