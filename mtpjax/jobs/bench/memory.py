"""`mtpjax bench memory`: temporary bytes of the loss and its gradient.

On request also its time, variants taking turns.
"""

import dataclasses
import statistics
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import rich.console

from mtpjax import losses, parallel
from mtpjax.config import LOSS_MODES, Config
from mtpjax.errors import UserError
from mtpjax.heads import HeadContext, MultiTokenModel
from mtpjax.heads.kinds import kind_of
from mtpjax.jobs.report import OnReport, make_report, print_rows
from mtpjax.model import Placement
from mtpjax.progress import Progress


def abstract_loss(config: Config, n: int, mode: str) -> tuple[Any, tuple]:
  """Returns the loss with its gradients, and shapes to compile it for.

  Args:
    config: shapes, kind of head, chunk size.
    n: offsets 1..n.
    mode: a mode of the loss.

  Returns:
    A function of (inputs, batch), and abstract arguments for it.
  """
  if kind_of(config.heads).wiring.reads_embeddings:
    raise UserError(
      f"heads.kind: {config.heads.kind!r} heads run before this loss; take "
      "another kind, or `mtpjax bench train`"
    )
  heads = dataclasses.replace(config.heads, offsets=tuple(range(1, n + 1)))
  model = MultiTokenModel(config.model, heads, parallel.single_device_mesh())
  b, t = config.train.batch_size, config.data.row_length
  d, v = config.model.d_model, config.model.vocab_size
  params = parallel.unbox(model.abstract())
  hidden: Any = jax.ShapeDtypeStruct((b, t, d), config.model.dtype)
  unembedding: Any = jax.ShapeDtypeStruct((d, v), config.model.param_dtype)
  probes: Any = jax.ShapeDtypeStruct((n - 1,), jnp.float32)
  head_params, own_MDV = losses.split_unembeddings(params.get("heads"))
  inputs = losses.HeadInputs(
    head_params,
    params["lm"]["final_norm"],
    hidden,
    hidden,
    unembedding,
    probes,
    own_MDV,
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
      HeadContext(Placement.packed(batch["positions"], batch["segments"])),
      mesh=model.mesh,
      mode=mode,
      chunk_tokens=config.loss.chunk_tokens,
      z_loss=config.loss.z_loss,
    )

  return jax.value_and_grad(loss, has_aux=True), (inputs, batch)


def run(
  config: Config,
  console: rich.console.Console,
  n: Sequence[int] = (1, 2, 4, 8),
  repeats: int = 0,
  on_report: OnReport | None = None,
) -> dict[str, Any]:
  """Compiles the loss in every mode and asks XLA what it needs.

  Args:
    config: shapes, kind of head, chunk size.
    console: gets a table.
    n: numbers of offsets.
    repeats: timed runs of each; 0 runs nothing.
    on_report: called with what is returned as far as it is known, whenever
      there are new rows.

  Returns:
    `rows` of {"variant", "n", "temp_bytes"}: bytes beside arguments and
    results; with `repeats` also {"secs", "secs_over_unrolled"}, medians.
  """
  report = make_report([], config, {"n": list(n), "repeats": repeats})
  rows = report["rows"]
  total = len(n) * len(LOSS_MODES)
  for done, offsets in enumerate(n):
    programs: dict[str, Any] = {}
    begun = done * len(LOSS_MODES)
    with Progress(console, "compiling", total, begun) as progress:
      for variant in reversed(LOSS_MODES):
        progress.update(text=f"compiling {variant}, {offsets} offsets")
        function, arguments = abstract_loss(config, offsets, variant)
        programs[variant] = jax.jit(function).lower(*arguments).compile()
        progress.update(begun + len(programs))
    with Progress(console, f"measuring {offsets} offsets"):
      secs = _time(programs, arguments, config, repeats)
    for variant, program in programs.items():
      row: dict[str, Any] = {
        "variant": variant,
        "n": offsets,
        "temp_bytes": int(program.memory_analysis().temp_size_in_bytes),
      }
      if repeats:
        row["secs"] = statistics.median(secs[variant])
        row["secs_over_unrolled"] = statistics.median(
          a / b for a, b in zip(secs[variant], secs["unrolled"], strict=True)
        )
      rows.append(row)
    if on_report is not None:
      on_report(report)
  headers = {"variant": "variant", "n": "n", "temp_bytes": "bytes"}
  if repeats:
    headers |= {"secs": "secs", "secs_over_unrolled": "time over unrolled"}
  print_rows(
    console, "temporary memory of the loss and its gradient", rows, headers
  )
  return report


def _time(
  programs: dict[str, Any], arguments: Any, config: Config, repeats: int
) -> dict[str, list[float]]:
  """Runs the programs in turn on random inputs; the first round is dropped."""
  random = np.random.default_rng(0)

  def draw(leaf: jax.ShapeDtypeStruct) -> jax.Array:
    if leaf.dtype == jnp.bool_:
      return jnp.ones(leaf.shape, bool)
    if jnp.issubdtype(leaf.dtype, jnp.integer):
      high = config.model.vocab_size
      return jnp.asarray(random.integers(1, high, leaf.shape), leaf.dtype)
    scale = config.model.d_model**-0.5
    return jnp.asarray(scale * random.normal(size=leaf.shape), leaf.dtype)

  secs: dict[str, list[float]] = {variant: [] for variant in programs}
  if not repeats:
    return secs
  inputs, batch = jax.tree.map(draw, arguments)
  batch["segments"] = jnp.ones_like(batch["segments"])
  for round_ in range(repeats + 1):
    for variant, program in programs.items():
      start = time.perf_counter()
      jax.block_until_ready(program(inputs, batch))
      if round_:
        secs[variant].append(time.perf_counter() - start)
  return secs
