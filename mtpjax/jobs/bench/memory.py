"""`mtpjax bench memory`: temporary bytes of the loss and its gradient."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import rich.console

from mtpjax import losses, parallel
from mtpjax.config import LOSS_MODES, Config, Data, Heads, Loss, Model, Train
from mtpjax.heads import HeadContext, MultiTokenModel
from mtpjax.jobs.bench.report import make_report, print_rows
from mtpjax.model import masks


def default_config() -> Config:
  """The shape the documented figures are for: B4 T512 D256 V32000."""
  return Config(
    model=Model(vocab_size=32_000, d_model=256, dtype="float32"),
    heads=Heads(kind="medusa", matched=False),
    loss=Loss(chunk_tokens=256),
    data=Data(row_length=512),
    train=Train(batch_size=4),
  )


def abstract_loss(config: Config, n: int, mode: str) -> tuple[Any, tuple]:
  """Returns the loss with its gradients, and shapes to compile it for.

  Args:
    config: shapes, kind of head, chunk size.
    n: offsets 1..n.
    mode: a mode of the loss.

  Returns:
    A function of (inputs, batch), and abstract arguments for it.
  """
  heads = dataclasses.replace(config.heads, offsets=tuple(range(1, n + 1)))
  model = MultiTokenModel(config.model, heads, parallel.single_device_mesh())
  b, t = config.train.batch_size, config.data.row_length
  d, v = config.model.d_model, config.model.vocab_size
  params = parallel.unbox(model.abstract())
  hidden = jax.ShapeDtypeStruct((b, t, d), config.model.dtype)
  inputs = losses.HeadInputs(
    params.get("heads"),
    params["lm"]["final_norm"],
    hidden,
    hidden,
    jax.ShapeDtypeStruct((d, v), config.model.param_dtype),
    jax.ShapeDtypeStruct((n - 1,), jnp.float32),
  )
  ids = jax.ShapeDtypeStruct((b, t), jnp.int32)
  batch = {
    "tokens": ids,
    "segments": ids,
    "positions": ids,
    "loss_mask": jax.ShapeDtypeStruct((b, t), jnp.bool_),
  }

  def loss(inputs, batch):
    targets = losses.batch_targets(batch, heads.offsets)
    coefficients_M = losses.offset_coefficients(targets.counts_M, ())
    return losses.multi_offset_loss(
      model.apply_head,
      inputs,
      targets,
      coefficients_M,
      HeadContext(batch["positions"], masks.packed(batch["segments"])),
      mesh=model.mesh,
      mode=mode,
      chunk_tokens=config.loss.chunk_tokens,
      z_loss=config.loss.z_loss,
    )

  return jax.value_and_grad(loss, has_aux=True), (inputs, batch)


def run(
  config: Config, console: rich.console.Console, n: Sequence[int] = (1, 2, 4, 8)
) -> dict[str, Any]:
  """Compiles the loss in every mode; nothing is run.

  Args:
    config: shapes, kind of head, chunk size.
    console: gets a table.
    n: numbers of offsets.

  Returns:
    `rows` of {"variant", "n", "temp_bytes"}: what XLA says the program needs
    beside its arguments and results.
  """
  rows = []
  for variant in reversed(LOSS_MODES):
    for offsets in n:
      function, arguments = abstract_loss(config, offsets, variant)
      memory = jax.jit(function).lower(*arguments).compile().memory_analysis()
      rows.append(
        {
          "variant": variant,
          "n": offsets,
          "temp_bytes": int(memory.temp_size_in_bytes),
        }
      )
  print_rows(console, "temporary memory of the loss and its gradient", rows)
  return make_report(rows, config, {"n": list(n)})
