"""Speed of decoding modes on the same requests, measured side by side."""

import dataclasses
import functools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from mtpjax.decode import Request, Spec, Tree
from mtpjax.decode.drafters.heads import draft_logits
from mtpjax.decode.loop import (
  bucket,
  pack_requests,
  read_results,
  run_chunk,
  start,
)
from mtpjax.decode.state import DecodeState
from mtpjax.heads import MultiTokenModel
from mtpjax.model import masks

_UNTIL_DONE = 1 << 30
_BARE_PASSES = 20


@dataclasses.dataclass(frozen=True)
class ModeSpeed:
  """What a mode did.

  Attributes:
    mode: "next" or "chain".
    tokens_per_pass: committed tokens over trunk passes, the prompt's included.
    tokens_per_sec: of the whole batch, the prompts' pass excluded; median.
    pass_secs: time of one pass of the loop; median.
    bare_pass_secs: the trunk and the unembedding at the same nodes, jitted by
      themselves; median.
    bare_draft_pass_secs: the same and the drafting heads at one row.
    pass_over_bare: median of pass_secs / bare_pass_secs, pair by pair.
    pass_over_bare_draft: the same over bare_draft_pass_secs.
    speed_over_first: median of tokens/s over that of the first mode, pair by
      pair.
    outputs_identical: every token equals the first mode's.
  """

  mode: str
  tokens_per_pass: float
  tokens_per_sec: float
  pass_secs: float
  bare_pass_secs: float
  bare_draft_pass_secs: float
  pass_over_bare: float
  pass_over_bare_draft: float
  speed_over_first: float
  outputs_identical: bool


@functools.partial(jax.jit, static_argnames=("spec", "drafts"))
def _bare_pass(
  spec: Spec, params: Any, state: DecodeState, drafts: bool
) -> tuple[jax.Array, ...]:
  """All matrix products of a pass; no choice, no verification, no commit."""
  tree, model = spec.tree, spec.model
  tokens_BQ = jnp.broadcast_to(
    state.root_B[:, None], (state.root_B.shape[0], tree.size)
  )
  out = model.apply_trunk(
    params["lm"],
    tokens_BQ,
    state.length_B[:, None] + jnp.asarray(tree.depth_Q),
    masks.tree(jnp.asarray(tree.ancestors_QQ), state.length_B),
    state.cache,
  )
  logits_BQV = model.trunk.logits(params["lm"], out.hidden_BTD)
  if not (drafts and tree.max_depth):
    return (logits_BQV,)
  logits_BMV = draft_logits(
    model, params, tree.max_depth, state.head_caches, out.tap_BTD[:, -1],
    state.length_B,
  )  # fmt: skip
  return logits_BQV, logits_BMV


class _Mode:
  """One mode's programs on one batch of requests."""

  def __init__(self, model, params, mode, requests):
    sampled = any(request.temperature > 0 for request in requests)
    self.mode = mode
    self.params = params
    self.n = len(requests)
    self.spec = Spec(model, Tree.for_mode(mode, model.heads), sampled)
    self.arrays = pack_requests(self.spec, requests, (), self.n)
    self.new = bucket(max(r.max_new_tokens for r in requests))
    self.capacity = self.arrays["prompt_BT"].shape[1] + self.new
    self.idle = self._start()

  def _start(self) -> DecodeState:
    state = start(self.spec, self.params, self.arrays, self.capacity, self.new)
    return jax.block_until_ready(state)

  def loop(self) -> tuple[float, DecodeState]:
    state = self._start()
    begin = time.perf_counter()
    state = run_chunk(self.spec, self.params, state, jnp.int32(_UNTIL_DONE))
    jax.block_until_ready(state.n_tokens_B)
    return time.perf_counter() - begin, state

  def bare(self, drafts: bool) -> float:
    begin = time.perf_counter()
    for _ in range(_BARE_PASSES):
      out = _bare_pass(self.spec, self.params, self.idle, drafts)
    jax.block_until_ready(out)
    return (time.perf_counter() - begin) / _BARE_PASSES


def measure(
  model: MultiTokenModel,
  params: Any,
  requests: Sequence[Request],
  modes: Sequence[str] = ("next", "chain"),
  repeats: int = 5,
  progress: Callable[[], None] = lambda: None,
) -> list[ModeSpeed]:
  """Decodes the same requests with every mode, in turn, several times.

  Each mode runs to the end of all budgets (no EOS ends a text), in one
  program, so that all modes commit the same number of tokens.

  Args:
    model: the model.
    params: from `decode.decode_params`.
    requests: one batch.
    modes: the first is what others are compared with.
    repeats: rounds; medians are over them.
    progress: called after every measurement.

  Returns:
    A `ModeSpeed` per mode.
  """
  runs = [_Mode(model, params, mode, requests) for mode in modes]
  secs: dict[str, list[float]] = {mode: [] for mode in modes}
  bare: dict[str, list[float]] = {mode: [] for mode in modes}
  bare_drafts: dict[str, list[float]] = {mode: [] for mode in modes}
  ids: dict[str, list[tuple[int, ...]]] = {}
  passes: dict[str, int] = {}
  loop_passes: dict[str, int] = {}
  tokens = 0
  for round_ in range(repeats + 1):
    for run in runs:
      seconds, state = run.loop()
      pair = run.bare(False), run.bare(True)
      progress()
      if round_:  # the first round compiles
        secs[run.mode].append(seconds)
        bare[run.mode].append(pair[0])
        bare_drafts[run.mode].append(pair[1])
        continue
      results = read_results(state, run.n)
      ids[run.mode] = [result.ids for result in results]
      # The prompt's pass commits a token too, outside the timed loop.
      tokens = sum(len(result.ids) for result in results)
      passes[run.mode] = sum(result.passes for result in results)
      # Rows of a batch share a pass: the slowest row counts them.
      loop_passes[run.mode] = max(result.passes - 1 for result in results)

  def median_ratio(a: Sequence[float], b: Sequence[float]) -> float:
    return statistics.median(x / y for x, y in zip(a, b, strict=True))

  speeds = []
  for mode in modes:
    pass_secs = [s / loop_passes[mode] for s in secs[mode]]
    speeds.append(
      ModeSpeed(
        mode=mode,
        tokens_per_pass=tokens / passes[mode],
        tokens_per_sec=(tokens - len(requests)) / statistics.median(secs[mode]),
        pass_secs=statistics.median(pass_secs),
        bare_pass_secs=statistics.median(bare[mode]),
        bare_draft_pass_secs=statistics.median(bare_drafts[mode]),
        pass_over_bare=median_ratio(pass_secs, bare[mode]),
        pass_over_bare_draft=median_ratio(pass_secs, bare_drafts[mode]),
        speed_over_first=median_ratio(secs[modes[0]], secs[mode]),
        outputs_identical=ids[mode] == ids[modes[0]],
      )
    )
  return speeds
