"""What comes of a call, and how far it is."""

import dataclasses
import time
from collections.abc import Iterator

from mtpjax import decode


@dataclasses.dataclass(frozen=True)
class Generation:
  """What was generated for a prompt.

  Attributes:
    ids: generated ids; what ended them (an EOS, a stop) belongs to them.
    text: the same as text, without special tokens and the stop string; that of
      the prompt and this are the whole.
    finish_reason: "eos", "stop" or "length".
    logprobs: log-probability of each id under the model at temperature 1,
      before penalties and masks.
    passes: trunk passes that committed them, the prompt's own included.
    proposed: drafts that those passes verified.
    accepted: drafts that became text.
    seed: of what was sampled, given or new; None where nothing was. The same
      call with this seed gives the same text.
  """

  ids: list[int]
  text: str
  finish_reason: str
  logprobs: list[float]
  passes: int
  proposed: int
  accepted: int
  seed: int | None = None

  @property
  def tokens_per_pass(self) -> float | None:
    """See `decode.tokens_per_pass`."""
    return decode.tokens_per_pass([self])


@dataclasses.dataclass(frozen=True)
class Decoding:
  """How far a call of `Loaded.generate` has come.

  Attributes:
    done: prompts that are over.
    total: prompts of the call.
    tokens: generated so far, without those of the prompts' own passes.
    secs: that those passes took. Compiling is not in it, nor are the prompts.
  """

  done: int
  total: int
  tokens: int
  secs: float


class Clock:
  """Times the passes of a call, and nothing else."""

  def __init__(self, total: int):
    """Starts with nothing done of `total` prompts."""
    self.reading = Decoding(0, total, 0, 0.0)

  def rounds(
    self, rounds: Iterator[dict[int, decode.Result]]
  ) -> Iterator[dict[int, decode.Result]]:
    """Passes on what `decode.generate` yields, `reading` kept up to date."""
    n_ids: dict[int, int] = {}
    done = tokens = 0
    secs = 0.0
    while True:
      start = time.perf_counter()
      latest = next(rounds, None)
      if latest is None:
        return
      elapsed = time.perf_counter() - start
      lengths = {number: len(r.ids) for number, r in latest.items()}
      # Where prompts are new it has run those, and perhaps compiled.
      if lengths.keys() <= n_ids.keys():
        secs += elapsed
        tokens += sum(n - n_ids[number] for number, n in lengths.items())
      n_ids |= lengths
      done += sum(r.finish_reason != "running" for r in latest.values())
      self.reading = Decoding(done, self.reading.total, tokens, secs)
      yield latest
