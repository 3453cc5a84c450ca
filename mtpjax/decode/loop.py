"""Requests in, tokens out: prefill, then chunks of passes in one loop each."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mtpjax.decode import sampling, verify
from mtpjax.decode.drafters import heads as drafter
from mtpjax.decode.state import DecodeState, Spec
from mtpjax.decode.step import prefill, step
from mtpjax.errors import UserError
from mtpjax.model import cache

_SMALLEST_BUCKET = 32
_EOS_SLOTS = 8


@dataclasses.dataclass(frozen=True)
class Request:
  """One prompt to go on from.

  Attributes:
    ids: token ids of the prompt, at least one.
    max_new_tokens: tokens to generate at most, at least 1.
    temperature: 0 is greedy.
    seed: seed of the request's noise.
    index: tells requests of one seed apart.
  """

  ids: tuple[int, ...]
  max_new_tokens: int
  temperature: float = 0.0
  seed: int = 0
  index: int = 0


@dataclasses.dataclass(frozen=True)
class Result:
  """What a request has brought so far.

  Attributes:
    ids: generated ids; the EOS that ended it is the last one.
    logprobs: their log-probabilities under the model at temperature 1.
    finish_reason: "eos", "length", or "running".
    passes: trunk passes that committed them, prefill included.
  """

  ids: tuple[int, ...]
  logprobs: tuple[float, ...]
  finish_reason: str
  passes: int


def bucket(n: int) -> int:
  """Returns the power of two, at least 32, that n is padded to."""
  return max(_SMALLEST_BUCKET, 1 << (n - 1).bit_length())


def empty_state(spec: Spec, batch: int, capacity: int, new: int) -> DecodeState:
  """Returns a state without requests.

  Args:
    spec: model and tree.
    batch: requests B.
    capacity: prompt and generated tokens a cache must hold; room for the
      longest path of the tree is added.
    new: generated tokens to hold; the same room is added.
  """
  model, tree = spec.model, spec.tree
  room = tree.max_depth + 1
  rows = capacity + room
  zeros_B = jnp.zeros(batch, jnp.int32)
  return DecodeState(
    root_B=zeros_B,
    candidates_BMC=jnp.zeros((batch, tree.max_depth, tree.width), jnp.int32),
    cache=tuple(
      cache.empty(model.config, batch, rows) for _ in range(model.trunk_layers)
    ),
    head_caches=drafter.empty_caches(model, tree.max_depth, batch, rows),
    length_B=zeros_B,
    tokens_BT=jnp.zeros((batch, new + room), jnp.int32),
    logprobs_BT=jnp.zeros((batch, new + room), jnp.float32),
    n_tokens_B=zeros_B,
    budget_B=zeros_B,
    finish_B=zeros_B,
    passes_B=zeros_B,
    keys_B=jax.vmap(sampling.request_key, (None, 0))(0, zeros_B),
    temperature_B=jnp.zeros(batch, jnp.float32),
    eos_ids_E=jnp.full(_EOS_SLOTS, -1, jnp.int32),
  )


@functools.partial(jax.jit, static_argnames=("spec", "capacity", "new"))
def start(
  spec: Spec, params: Any, requests: dict[str, jax.Array],
  capacity: int, new: int,
) -> DecodeState:  # fmt: skip
  """Makes the state and runs the prompts; see `prefill`.

  Args:
    spec: model and tree.
    params: from `decode_params`.
    requests: `prompt_BT`, `prompt_length_B`, `budget_B`, `temperature_B`,
      `seed_B`, `index_B` and `eos_ids_E`.
    capacity: see `empty_state`.
    new: see `empty_state`.

  Returns:
    The state after the first token of each request.
  """
  prompt_BT = requests["prompt_BT"]
  state = empty_state(spec, prompt_BT.shape[0], capacity, new)
  budget_B = requests["budget_B"]
  state = state.replace(
    budget_B=budget_B,
    # A row without a budget only fills the batch up.
    finish_B=jnp.where(budget_B > 0, verify.RUNNING, verify.LENGTH),
    temperature_B=requests["temperature_B"],
    keys_B=jax.vmap(sampling.request_key)(
      requests["seed_B"], requests["index_B"]
    ),
    eos_ids_E=requests["eos_ids_E"],
  )
  return prefill(spec, params, prompt_BT, requests["prompt_length_B"], state)


@functools.partial(
  jax.jit, static_argnames=("spec",), donate_argnames=("state",)
)
def run_chunk(
  spec: Spec, params: Any, state: DecodeState, passes: jax.Array
) -> DecodeState:
  """Runs up to `passes` passes, fewer if every request finishes."""

  def goes_on(carry):
    state, left = carry
    return (left > 0) & jnp.any(state.finish_B == verify.RUNNING)

  def one_pass(carry):
    state, left = carry
    return step(spec, params, state), left - 1

  state, _ = jax.lax.while_loop(goes_on, one_pass, (state, passes))
  return state


def pack_requests(
  spec: Spec, requests: Sequence[Request], eos_ids: Sequence[int], batch: int
) -> dict[str, jax.Array]:
  """Lays requests out as padded arrays.

  Args:
    spec: model and tree.
    requests: at most `batch`; missing rows are filled up with idle ones.
    eos_ids: ids that end a text.
    batch: B.

  Returns:
    The arrays `start` takes.

  Raises:
    UserError: a request that cannot be run; too many requests or EOS ids.
  """
  if not 0 < len(requests) <= batch:
    raise UserError(f"requests: {len(requests)} do not fit a batch of {batch}")
  if len(eos_ids) > _EOS_SLOTS:
    raise UserError(
      f"EOS ids: {len(eos_ids)} are more than the {_EOS_SLOTS} supported"
    )
  for request in requests:
    _check(spec, request)
  width = bucket(max(len(request.ids) for request in requests))
  prompt_BT = np.zeros((batch, width), np.int32)
  lengths, budgets = np.ones(batch, np.int32), np.zeros(batch, np.int32)
  temperatures = np.zeros(batch, np.float32)
  seeds, indices = np.zeros(batch, np.int32), np.zeros(batch, np.int32)
  for b, request in enumerate(requests):
    prompt_BT[b, : len(request.ids)] = request.ids
    lengths[b] = len(request.ids)
    budgets[b] = request.max_new_tokens
    temperatures[b] = request.temperature
    seeds[b], indices[b] = request.seed, request.index
  eos_ids_E = np.full(_EOS_SLOTS, -1, np.int32)
  eos_ids_E[: len(eos_ids)] = eos_ids
  arrays = dict(
    prompt_BT=prompt_BT, prompt_length_B=lengths, budget_B=budgets,
    temperature_B=temperatures, seed_B=seeds, index_B=indices,
    eos_ids_E=eos_ids_E,
  )  # fmt: skip
  return jax.tree.map(jnp.asarray, arrays)


def _check(spec: Spec, request: Request) -> None:
  """Raises UserError for a request that cannot be run."""
  size = spec.model.config.vocab_size
  outside = [i for i in request.ids if not 0 <= i < size]
  problem = ""
  if not request.ids:
    problem = "has no tokens; give at least one, such as the BOS id"
  elif outside:
    problem = f"id {outside[0]} is outside the vocabulary of {size}"
  elif request.max_new_tokens < 1:
    problem = f"max_new_tokens {request.max_new_tokens} must be at least 1"
  elif not 0 <= request.temperature < float("inf"):
    problem = f"temperature {request.temperature} must be 0 or more"
  elif request.temperature and not spec.is_sampled:
    problem = "has a temperature, but the program is a greedy one"
  elif not 0 <= request.seed < 1 << 31:
    problem = f"seed {request.seed} must be from 0 to 2147483647"
  if problem:
    raise UserError(f"prompt {request.index}: {problem}")


def read_results(state: DecodeState, n: int) -> list[Result]:
  """Fetches what the first n requests have brought."""
  tokens, logprobs, n_tokens, finish, passes = jax.device_get(
    (
      state.tokens_BT, state.logprobs_BT, state.n_tokens_B, state.finish_B,
      state.passes_B,
    )
  )  # fmt: skip
  return [
    Result(
      tuple(tokens[b, : n_tokens[b]].tolist()),
      tuple(logprobs[b, : n_tokens[b]].tolist()),
      verify.FINISH_REASONS[finish[b]],
      int(passes[b]),
    )
    for b in range(n)
  ]


def generate(
  spec: Spec,
  params: Any,
  requests: Sequence[Request],
  eos_ids: Sequence[int],
  batch: int,
  chunk_passes: int,
) -> Iterator[list[Result]]:
  """Runs one batch of requests, reporting after every chunk of passes.

  Args:
    spec: model and tree.
    params: from `decode_params`.
    requests: at most `batch` of them.
    eos_ids: ids that end a text; empty never ends one.
    batch: rows the programs are compiled for.
    chunk_passes: passes between reports.

  Yields:
    A `Result` per request, longer each time; the last time all have finished.
  """
  arrays = pack_requests(spec, requests, eos_ids, batch)
  new = bucket(max(request.max_new_tokens for request in requests))
  capacity = arrays["prompt_BT"].shape[1] + new
  state = start(spec, params, arrays, capacity, new)
  while True:
    results = read_results(state, len(requests))
    yield results
    if all(r.finish_reason != "running" for r in results):
      return
    state = run_chunk(spec, params, state, jnp.int32(chunk_passes))
