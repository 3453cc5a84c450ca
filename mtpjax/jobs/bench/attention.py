"""`mtpjax bench attention`: one attention, by length, mask and implementation.

Forward, forward with gradients, and the temporary memory of the latter;
implementations take turns.
"""

import statistics
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import rich.console

from mtpjax.config import Config
from mtpjax.errors import UserError
from mtpjax.jobs.report import OnReport, make_report, print_rows
from mtpjax.model import KeyValues, Placement
from mtpjax.model.attention.choose import attend
from mtpjax.progress import Progress

IMPLEMENTATIONS = ("full", "blocks", "cudnn")
_DOCUMENTS = 4  # of a packed row
_HEADERS = {
  "implementation": "implementation", "mask": "mask", "length": "length",
  "forward_secs": "forward, s", "backward_secs": "with gradients, s",
  "temp_bytes": "temporary bytes",
}  # fmt: skip


def run(
  config: Config,
  console: rich.console.Console,
  lengths: Sequence[int],
  implementations: Sequence[str],
  repeats: int = 5,
  on_report: OnReport | None = None,
) -> dict[str, Any]:
  """Measures attention alone, on random rows.

  Args:
    config: heads, widths, dtype and window of `model`; `train.batch_size`.
    console: gets a table.
    lengths: rows T.
    implementations: of `IMPLEMENTATIONS`.
    repeats: timed runs of each.
    on_report: called with what is returned as far as it is known.

  Returns:
    `rows` of {"implementation", "batch", "length", "mask", "forward_secs",
    "backward_secs", "temp_bytes"}: medians; the second is a forward pass with
    its gradients. The mask is "causal", or "packed" with four documents a row.

  Raises:
    UserError: an implementation that there is not.
  """
  for name in implementations:
    if name not in IMPLEMENTATIONS:
      raise UserError(
        f"--implementations: {name!r} is not one of "
        f"{', '.join(IMPLEMENTATIONS)}"
      )
  settings = {
    "lengths": list(lengths), "implementations": list(implementations),
    "repeats": repeats,
  }  # fmt: skip
  report = make_report([], config, settings)
  cases = [(t, mask) for t in lengths for mask in ("causal", "packed")]
  with Progress(console, "measuring", len(cases)) as progress:
    for done, (length, mask) in enumerate(cases):
      progress.update(done, f"measuring {length} rows, {mask}")
      report["rows"] += _measure(config, length, mask, implementations, repeats)
      if on_report is not None:
        on_report(report)
  print_rows(
    console, f"attention, batch {config.train.batch_size}", report["rows"],
    _HEADERS,
  )  # fmt: skip
  return report


def _measure(
  config: Config,
  length: int,
  mask: str,
  implementations: Sequence[str],
  repeats: int,
) -> list[dict[str, Any]]:
  c, batch = config.model, config.train.batch_size
  rng = np.random.default_rng(0)

  def draw(*shape: int) -> jax.Array:
    return jnp.asarray(rng.normal(size=shape), c.dtype)

  inputs = (
    draw(batch, length, c.n_attention_heads, c.d_head),
    KeyValues(
      draw(batch, c.n_kv_heads, length, c.d_head),
      draw(batch, c.n_kv_heads, length, c.d_head),
    ),
  )
  cut = -(-length // (_DOCUMENTS if mask == "packed" else 1))
  rows_BT = jnp.broadcast_to(jnp.arange(length), (batch, length))
  placement = Placement.packed(rows_BT % cut, 1 + rows_BT // cut)

  def make(name: str) -> tuple[Any, Any]:
    def forward(inputs: Any, placement: Placement) -> jax.Array:
      q_BTNH, new = inputs
      return attend(q_BTNH, new, placement, None, name, c.sliding_window)

    def total(inputs: Any, placement: Placement) -> jax.Array:
      return jnp.sum(forward(inputs, placement).astype(jnp.float32))

    return (
      jax.jit(forward).lower(inputs, placement).compile(),
      jax.jit(jax.value_and_grad(total)).lower(inputs, placement).compile(),
    )

  programs = {name: make(name) for name in implementations}
  secs: dict[tuple[str, int], list[float]] = {}
  for round_ in range(repeats + 1):
    for name, both in programs.items():
      for which, program in enumerate(both):
        start = time.perf_counter()
        jax.block_until_ready(program(inputs, placement))
        if round_:  # the first one warms up
          taken = time.perf_counter() - start
          secs.setdefault((name, which), []).append(taken)
  return [
    {
      "implementation": name,
      "batch": batch,
      "length": length,
      "mask": mask,
      "forward_secs": statistics.median(secs[name, 0]),
      "backward_secs": statistics.median(secs[name, 1]),
      "temp_bytes": int(both[1].memory_analysis().temp_size_in_bytes),
    }
    for name, both in programs.items()
  ]
