"""AdamW, its schedule, and which parameters decay."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from mtpjax import config as config_lib
from mtpjax import parallel

_STACKED = ("layers", "offsets")


def make_schedule(
  config: config_lib.Optim, of_heads: bool = False
) -> optax.Schedule:
  """Linear warm-up from 0, cosine to the last rate, which then holds.

  Args:
    config: the hyperparameters.
    of_heads: the schedule of the extra heads, which begins at once, and not
      that of the model, which waits `heads_only_steps`.

  Returns:
    Steps -> learning rate.
  """
  ratio = config.heads_lr_ratio if of_heads else 1.0
  wait = 0 if of_heads else config.heads_only_steps
  peak = ratio * config.peak_lr
  schedule = optax.warmup_cosine_decay_schedule(
    init_value=0.0,
    peak_value=peak,
    warmup_steps=config.warmup_steps,
    decay_steps=config.decay_steps - wait,
    end_value=peak * config.final_lr_fraction,
  )
  if not wait:
    return schedule
  return optax.join_schedules([optax.constant_schedule(0.0), schedule], [wait])


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
  """Clips by norm, then AdamW (Loshchilov & Hutter 2019).

  Args:
    config: the hyperparameters.
    boxes: the trees of `Logical` boxes around the parts that learn, by name.
      Only "lm" waits `heads_only_steps` and has the whole rate.

  Returns:
    The optax transformation.
  """

  def adamw(name: str, mask: Any) -> optax.GradientTransformation:
    return optax.adamw(
      make_schedule(config, of_heads=name != "lm"),
      b1=config.b1,
      b2=config.b2,
      eps=config.eps,
      weight_decay=config.weight_decay,
      mask=mask,
    )

  clip = (
    optax.clip_by_global_norm(config.clip_norm)
    if config.clip_norm
    else optax.identity()
  )
  decays = decay_mask(boxes)
  if len(boxes) == 1:
    [name] = boxes
    return optax.chain(clip, adamw(name, decays))
  is_alike = config.heads_lr_ratio == 1 and not config.heads_only_steps
  if is_alike and not config.clips_apart:
    return optax.chain(clip, adamw("lm", decays))
  # To the optimizer of a part the others are not there.
  absent = {name: optax.MaskedNode() for name in boxes}
  each = {name: adamw(name, absent | {name: decays[name]}) for name in boxes}
  if config.clips_apart:
    each = {name: optax.chain(clip, part) for name, part in each.items()}
  parts = optax.partition(each, {name: name for name in boxes})
  return parts if config.clips_apart else optax.chain(clip, parts)


def clipped_norm(config: config_lib.Optim, grads: Any) -> jax.Array:
  """Returns the global norm of gradients after clipping.

  Args:
    config: the hyperparameters.
    grads: of the parts that learn, by name.

  Returns:
    A scalar.
  """
  if not config.clip_norm:
    return optax.tree.norm(grads)
  if not config.clips_apart:
    return jnp.minimum(optax.tree.norm(grads), config.clip_norm)
  norms = [optax.tree.norm(part) for part in grads.values()]
  return jnp.linalg.norm(jnp.minimum(jnp.stack(norms), config.clip_norm))
