"""Requests in, tokens out: a queue that keeps the rows of a batch filled."""

import collections
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import jax.numpy as jnp
import numpy as np

from mtpjax.decode import batch as batches
from mtpjax.decode.requests import Request, Result
from mtpjax.decode.spec import Spec

FindStop = Callable[[int, Sequence[int]], int | None]


class Chooser(Protocol):
  """Decides which of several programs runs the next chunk."""

  def choose(self, kinds: Iterable[str]) -> int:
    """Returns the index of the program, given the class of each row."""

  def observe(self, kind: str, level: int, tokens: int, passes: int) -> None:
    """Takes note of what the rows of one class did in a chunk."""

  def tick(self) -> None:
    """A chunk is over."""


def generate(
  specs: Sequence[Spec],
  params: Any,
  requests: Sequence[Request],
  eos_ids: Sequence[int] = (),
  batch: int = 1,
  chunk_passes: int = 16,
  find_stop: FindStop | None = None,
  chooser: Chooser | None = None,
) -> Iterator[dict[int, Result]]:
  """Runs requests, reporting after every chunk of passes.

  Rows that finish are refilled from the requests that wait. With the coupled
  verifier the output does not depend on batch, chunk, order, or program; with
  rejection and block its distribution does not.

  Args:
    specs: the program; or several of the same stages, room and kept heads,
      between which `chooser` chooses.
    params: from `decode_params`.
    requests: any number of them.
    eos_ids: ids that end a text; empty never ends one.
    batch: rows the programs are compiled for.
    chunk_passes: passes between reports.
    find_stop: gets the number of a request and its ids so far; returns how
      many of them belong to the text if a stop string ends it, else None.
    chooser: decides which program runs the next chunk.

  Yields:
    The results of the requests in the batch, by their number. The first
    result of a request that is not "running" is its last.

  Raises:
    UserError: a request that cannot be run.
  """
  run = _Run(specs, params, requests, eos_ids, batch, find_stop)
  while True:
    while run.admit():
      yield run.read()
    running = run.running()
    if not running:
      return
    level = 0
    if chooser is not None:
      level = chooser.choose([requests[n].kind for n in running])
    before = dict(running)
    run.advance(level, chunk_passes)
    results = run.read()
    yield results
    if chooser is not None:
      for number, earlier in before.items():
        chooser.observe(
          requests[number].kind,
          level,
          len(results[number].ids) - len(earlier.ids),
          results[number].passes - earlier.passes,
        )
      chooser.tick()


class _Run:
  """The state of a batch, and which request is in which of its rows."""

  def __init__(self, specs, params, requests, eos_ids, batch, find_stop):
    self._specs = specs
    self._params = params
    self._requests = requests
    self._find_stop = find_stop
    self._packer = batches.Packer.of(specs[0], requests, eos_ids)
    self._waiting = collections.deque(range(len(requests)))
    self._rows: list[int | None] = [None] * batch
    self._running: dict[int, Result] = {}
    self._state = batches.empty_state(
      specs[0],
      self._packer.pack(requests[:1])["controls"],
      batch,
      self._packer.capacity,
    )
    self._is_compiled = all(r.max_new_tokens == 1 for r in requests)

  def running(self) -> dict[int, Result]:
    """Returns the latest results of the requests that are not over."""
    return self._running

  def admit(self) -> bool:
    """Puts waiting requests into free rows; False if either is missing."""
    free = [b for b, number in enumerate(self._rows) if number is None]
    free = free[: len(self._waiting)]
    if not free:
      return False
    numbers = [self._waiting.popleft() for _ in free]
    packed = self._packer.pack([self._requests[n] for n in numbers])
    padding = packed["prompt_RT"].shape[0] - len(free)
    for b, number in zip(free, numbers, strict=True):
      self._rows[b] = number
    self._state = batches.admit(
      self._specs[0], self._params, self._packer.tables, self._state, packed,
      jnp.asarray(free + free[-1:] * padding, jnp.int32),
    )  # fmt: skip
    if not self._is_compiled:
      self._compile()
    return True

  def _compile(self) -> None:
    """Compiles all programs, so that no chunk and no switch has to wait.

    For a state that has been where the parameters are, as it will be from now
    on: for the one before they would be other programs.
    """
    for spec in self._specs:
      batches.lower_chunk(
        spec, self._params, self._packer.tables, self._state, jnp.int32(0)
      ).compile()
    self._is_compiled = True

  def advance(self, level: int, passes: int) -> None:
    """Runs a chunk of passes of one of the programs."""
    self._state = batches.run_chunk(
      self._specs[level], self._params, self._packer.tables, self._state,
      jnp.int32(passes),
    )  # fmt: skip

  def read(self) -> dict[int, Result]:
    """Fetches the results of all rows and frees those that are over."""
    traces = batches.read_traces(self._state)
    results: dict[int, Result] = {}
    is_stopped_B = np.zeros(len(self._rows), bool)
    for b, number in enumerate(self._rows):
      if number is None:
        continue
      result = traces[b].result()
      if self._find_stop is not None:
        n = self._find_stop(number, result.ids)
        if n is not None:
          result = traces[b].result(n)
          is_stopped_B[b] = True
      results[number] = result
      if result.finish_reason == "running":
        self._running[number] = result
      else:
        self._running.pop(number, None)
        self._rows[b] = None
    if is_stopped_B.any():
      self._state = batches.finish(self._state, jnp.asarray(is_stopped_B))
    return results
