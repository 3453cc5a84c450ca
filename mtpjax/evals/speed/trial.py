"""One program on one batch of requests, begun as often as one likes."""

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mtpjax.decode import DecodeState, Request, Result, Spec, Tree, verifiers
from mtpjax.decode import batch as batches
from mtpjax.decode.drafters import NoDrafts

_UNTIL_DONE = 1 << 30


class Trial:
  """Requests that are admitted together and decoded to the end of budgets.

  No EOS ends a text, so that all programs commit the same number of tokens.

  Attributes:
    spec: the program.
    params: from `decode_params`.
    tables: see `decode.batch`.
  """

  def __init__(
    self,
    spec: Spec,
    params: Any,
    packer: batches.Packer,
    requests: Sequence[Request],
  ):
    """Lays the requests out.

    Args:
      spec: the program.
      params: from `decode_params`.
      packer: of these requests, and of any that share shapes with them.
      requests: one batch.
    """
    self.spec = spec
    self.params = params
    self.tables = packer.tables
    # Prompts know nothing of trees, so modes share the program that runs them.
    drafter = NoDrafts() if spec.drafter.keeps_nothing else spec.drafter
    self._prompt_spec = dataclasses.replace(
      spec, tree=Tree.root(), drafter=drafter, verifier=verifiers.Coupled()
    )
    self._capacity = packer.capacity
    self._rows = list(range(len(requests)))
    self._packed = packer.pack(requests)
    self._ends_B = np.array(
      [len(r.ids) + r.max_new_tokens - 1 for r in requests]
    )

  def start(self) -> DecodeState:
    """Returns the state after the prompts and their first tokens."""
    padding = self._packed["prompt_RT"].shape[0] - len(self._rows)
    state = batches.empty_state(
      self._prompt_spec,
      self._packed["controls"],
      len(self._rows),
      self._capacity,
    )
    state = batches.admit(
      self._prompt_spec, self.params, self.tables, state, self._packed,
      jnp.asarray(self._rows + self._rows[-1:] * padding, jnp.int32),
    )  # fmt: skip
    return jax.block_until_ready(state)

  def run(
    self, state: DecodeState, passes: int = _UNTIL_DONE
  ) -> tuple[float, DecodeState]:
    """Runs passes in one program.

    Args:
      state: is donated.
      passes: at most; by default until all texts are done.

    Returns:
      Seconds, and the next state.
    """
    begin = time.perf_counter()
    state = batches.run_chunk(
      self.spec, self.params, self.tables, state, jnp.int32(passes)
    )
    jax.block_until_ready(state.length_B)
    return time.perf_counter() - begin, state

  def results(self, state: DecodeState) -> list[Result]:
    """Returns the results of the requests."""
    return [trace.result() for trace in batches.read_traces(state)]

  def served_secs(self, chunk_passes: int) -> float:
    """Runs to the end as `decode.generate` does.

    Args:
      chunk_passes: passes after which the host looks at what has come.

    Returns:
      Seconds, those of the prompts' pass excluded.
    """
    state = self.start()
    begin = time.perf_counter()
    while True:
      state = batches.run_chunk(
        self.spec, self.params, self.tables, state, jnp.int32(chunk_passes)
      )
      results = self.results(state)
      if all(result.finish_reason != "running" for result in results):
        return time.perf_counter() - begin

  def token_secs(self) -> list[float]:
    """Runs pass by pass, as the host sees it.

    Returns:
      For each token the seconds of its pass over the tokens that its row got
      from it; those of the prompts' pass are left out.
    """
    secs: list[float] = []
    state = self.start()
    length_B = np.asarray(state.length_B)
    while (length_B < self._ends_B).any():
      pass_secs, state = self.run(state, 1)
      now_B = np.asarray(state.length_B)
      for n in (now_B - length_B).tolist():
        secs += [pass_secs / n] * n if n else []
      length_B = now_B
    return secs
