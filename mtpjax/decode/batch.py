"""A batch of requests on the device: rows are admitted, run, read, replaced.

Axes: B rows of the batch, R requests admitted together, T prompt positions.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mtpjax.decode import endings
from mtpjax.decode.buckets import LEAST_TOKENS, bucket
from mtpjax.decode.controls import Controls, ControlShapes, Stages
from mtpjax.decode.grammar import automaton
from mtpjax.decode.prefill import prefill
from mtpjax.decode.requests import Request, Trace
from mtpjax.decode.sampling import Tables
from mtpjax.decode.spec import Spec
from mtpjax.decode.state import DecodeState
from mtpjax.decode.step import step
from mtpjax.errors import UserError
from mtpjax.model import cache

_EOS_SLOTS = 8


@dataclasses.dataclass(frozen=True)
class Packer:
  """Lays requests of one run out as arrays of the shapes they share.

  Attributes:
    shapes: of the controls.
    tables: EOS ids and grammars.
    grammar_starts: start state of each grammar, by its identity.
    capacity: positions of the longest text.
    least_prompt: tokens that prompts are padded to at least.
  """

  shapes: ControlShapes
  tables: Tables
  grammar_starts: dict[int, int]
  capacity: int
  least_prompt: int

  @classmethod
  def of(
    cls, spec: Spec, requests: Sequence[Request], eos_ids: Sequence[int]
  ) -> "Packer":
    """Checks requests and finds the shapes that hold them all.

    Args:
      spec: the program.
      requests: all that this run may ever admit.
      eos_ids: ids that end a text; empty never ends one.

    Returns:
      The packer.

    Raises:
      UserError: a request that cannot be run, or too many EOS ids.
    """
    if not requests:
      raise UserError("requests: there are none")
    if len(eos_ids) > _EOS_SLOTS:
      raise UserError(
        f"EOS ids: {len(eos_ids)} are more than the {_EOS_SLOTS} supported"
      )
    vocab_size = spec.model.config.vocab_size
    for number, request in enumerate(requests):
      request.check(f"prompt {number}", vocab_size, tuple(eos_ids))
    missing = Stages.of(requests).missing_from(spec.stages)
    if missing:
      raise UserError(
        f"requests: need {', '.join(missing)}, which the program was made "
        "without; make its stages with Stages.of(requests)"
      )
    grammars = list(
      {id(r.grammar): r.grammar for r in requests if r.grammar}.values()
    )
    table, starts = (
      automaton.merge(grammars, vocab_size) if grammars else (None, [])
    )
    missing_ids = sorted(set().union(*(r.missing_ids for r in requests)))
    is_token_V = np.ones(vocab_size, bool)
    is_token_V[missing_ids] = False
    eos_ids_E = np.full(_EOS_SLOTS, -1, np.int32)
    eos_ids_E[: len(eos_ids)] = eos_ids
    longest = max(len(r.ids) for r in requests)
    most = max(r.max_new_tokens for r in requests)
    asked = max(r.capacity for r in requests)
    return cls(
      ControlShapes.of(spec.stages, requests, vocab_size),
      Tables(
        jnp.asarray(eos_ids_E),
        table,
        jnp.asarray(is_token_V) if missing_ids else None,
      ),
      {id(g): start for g, start in zip(grammars, starts, strict=True)},
      max(bucket(longest, LEAST_TOKENS) + bucket(most, LEAST_TOKENS), asked),
      # Who expects longer ones is not to compile for every length below.
      max(LEAST_TOKENS, bucket(asked // 8, 1)),
    )

  def pack(self, requests: Sequence[Request]) -> dict[str, Any]:
    """Lays some of the requests out; the arguments `admit` takes.

    Args:
      requests: R of them. As many as the next power of two are admitted, the
        last one several times, so that few programs are compiled.

    Returns:
      `prompt_RT`, `prompt_length_R`, `controls` and `grammar_R`.
    """
    padded = list(requests)
    padded += padded[-1:] * (bucket(len(padded), 1) - len(padded))
    longest = max(len(request.ids) for request in padded)
    width = bucket(longest, self.least_prompt)
    prompt_RT = np.zeros((len(padded), width), np.int32)
    for r, request in enumerate(padded):
      prompt_RT[r, : len(request.ids)] = request.ids
    starts = [
      0 if r.grammar is None else self.grammar_starts[id(r.grammar)]
      for r in padded
    ]
    return {
      "prompt_RT": jnp.asarray(prompt_RT),
      "prompt_length_R": jnp.asarray([len(r.ids) for r in padded], jnp.int32),
      "controls": self.shapes.pack(padded),
      "grammar_R": jnp.asarray(starts, jnp.int32),
    }


@functools.partial(jax.jit, static_argnames=("spec", "batch", "capacity"))
def empty_state(
  spec: Spec, controls: Controls, batch: int, capacity: int
) -> DecodeState:
  """Returns a batch of rows that have finished, without requests.

  Args:
    spec: the program.
    controls: of any requests of the run; only shapes matter.
    batch: rows B.
    capacity: positions of the longest text; `spec.room` is added.

  Returns:
    The state.
  """
  model, positions = spec.model, capacity + spec.room
  zeros_B = jnp.zeros(batch, jnp.int32)
  zeros_BS = jnp.zeros((batch, positions), jnp.int32)
  vocabulary = (batch, model.config.vocab_size)
  penalises = spec.stages.penalises
  return DecodeState(
    tokens_BS=zeros_BS,
    logprobs_BS=jnp.zeros((batch, positions), jnp.float32),
    passes_BS=zeros_BS,
    proposed_BS=zeros_BS,
    origins_BS=zeros_BS,
    prompt_length_B=zeros_B + 1,
    length_B=zeros_B,
    finish_B=zeros_B + endings.LENGTH,
    n_passes_B=zeros_B,
    n_proposed_B=zeros_B,
    cache=tuple(
      cache.empty(model.config, batch, positions)
      for _ in range(model.trunk_layers)
    ),
    draft=spec.drafter.empty(model, batch, positions),
    controls=jax.tree.map(
      lambda x: jnp.broadcast_to(x[:1], (batch, *x.shape[1:])), controls
    ),
    counts_BV=jnp.zeros(vocabulary, jnp.int32) if penalises else None,
    seen_BV=jnp.zeros(vocabulary, bool) if penalises else None,
    grammar_B=zeros_B,
  )


@functools.partial(
  jax.jit, static_argnames=("spec",), donate_argnames=("state",)
)
def admit(
  spec: Spec,
  params: Any,
  tables: Tables,
  state: DecodeState,
  requests: dict[str, Any],
  rows_R: jax.Array,
) -> DecodeState:
  """Runs prompts and puts them into rows of a batch.

  Args:
    spec: the program.
    params: from `decode_params`.
    tables: EOS ids and grammars.
    state: the batch; its other rows stay as they are.
    requests: from `Packer.pack`.
    rows_R: row of each request; those that are padded repeat one.

  Returns:
    The batch with the new rows after their first token.
  """
  prompt_RT, length_R = requests["prompt_RT"], requests["prompt_length_R"]
  r, positions = prompt_RT.shape[0], state.tokens_BS.shape[1]
  fresh = empty_state(spec, requests["controls"], r, positions - spec.room)
  seen_RV = fresh.seen_BV
  if seen_RV is not None:
    is_prompt_RT = jnp.arange(prompt_RT.shape[1]) < length_R[:, None]
    seen_RV = seen_RV.at[jnp.arange(r)[:, None], prompt_RT].max(is_prompt_RT)
  fresh = fresh.replace(
    tokens_BS=jax.lax.dynamic_update_slice(fresh.tokens_BS, prompt_RT, (0, 0)),
    prompt_length_B=length_R,
    length_B=length_R - 1,
    finish_B=jnp.full_like(length_R, endings.RUNNING),
    controls=requests["controls"],
    seen_BV=seen_RV,
    grammar_B=requests["grammar_R"],
  )
  fresh = prefill(spec, params, tables, prompt_RT, fresh)

  def insert(there: jax.Array, new: jax.Array) -> jax.Array:
    for i in range(r):
      there = jax.lax.dynamic_update_slice_in_dim(
        there, new[i : i + 1], rows_R[i], axis=0
      )
    return there

  return jax.tree.map(insert, state, fresh)


@functools.partial(
  jax.jit, static_argnames=("spec",), donate_argnames=("state",)
)
def run_chunk(
  spec: Spec,
  params: Any,
  tables: Tables,
  state: DecodeState,
  passes: jax.Array,
) -> DecodeState:
  """Runs up to `passes` passes, fewer if every request finishes."""

  def goes_on(carry):
    state, left = carry
    return (left > 0) & jnp.any(state.finish_B == endings.RUNNING)

  def one_pass(carry):
    state, left = carry
    return step(spec, params, tables, state), left - 1

  state, _ = jax.lax.while_loop(goes_on, one_pass, (state, passes))
  return state


# Of the same arguments; what is compiled of it need not be when it is called.
lower_chunk = run_chunk.lower


@functools.partial(jax.jit, donate_argnames=("state",))
def finish(state: DecodeState, is_finished_B: jax.Array) -> DecodeState:
  """Ends rows whose text the host has found to be over."""
  return state.replace(
    finish_B=jnp.where(is_finished_B, endings.STOP, state.finish_B)
  )


def read_traces(state: DecodeState) -> list[Trace]:
  """Fetches the result of every row."""
  names = {
    "ids": "tokens_BS", "logprobs": "logprobs_BS", "passes": "passes_BS",
    "proposed": "proposed_BS", "origins": "origins_BS",
  }  # fmt: skip
  arrays, first, length, finish = jax.device_get(
    (
      {name: getattr(state, buffer) for name, buffer in names.items()},
      state.prompt_length_B,
      state.length_B,
      state.finish_B,
    )
  )
  return [
    Trace(
      finish_reason=endings.FINISH_REASONS[finish[b]],
      **{name: x[b, first[b] : length[b] + 1] for name, x in arrays.items()},
    )
    for b in range(len(first))
  ]
