"""What is asked of a decoder, and what comes back."""

import dataclasses

import numpy as np

from mtpjax.config.sampling import LARGEST, LARGEST_INT, Sampling
from mtpjax.decode.grammar import Grammar
from mtpjax.errors import UserError

# More is a mistake: a cache of that length has no place anywhere.
MAX_LENGTH = 1 << 24


@dataclasses.dataclass(frozen=True)
class Request(Sampling):
  """One prompt to go on from; its numbers are those of `config.Sampling`.

  Attributes:
    ids: token ids of the prompt, at least one.
    max_new_tokens: tokens to generate at most, at least 1.
    index: distinguishes requests of one seed.
    logit_bias: (id, value) pairs, added to the logits.
    bad_words: sequences of ids that the text never has.
    stop_sequences: sequences of ids that end the text and belong to it.
    grammar: what the text must match; it then ends with an EOS.
    missing_ids: ids of the model that the tokenizer lacks (a padded
      vocabulary, or holes in it); never generated, by any request of the run.
    kind: class of the request; acceptance is tracked per class.
    capacity: positions that the programs are laid out for at least, so that
      longer texts of later requests run in them, too.
  """

  ids: tuple[int, ...]
  max_new_tokens: int
  index: int = 0
  logit_bias: tuple[tuple[int, float], ...] = ()
  bad_words: tuple[tuple[int, ...], ...] = ()
  stop_sequences: tuple[tuple[int, ...], ...] = ()
  grammar: Grammar | None = None
  missing_ids: frozenset[int] = frozenset()
  kind: str = ""
  capacity: int = 0

  def is_neutral(self, name: str) -> bool:
    """Whether a number, if there is one, changes nothing about the choice."""
    field = type(self).__dataclass_fields__.get(name)
    return field is None or getattr(self, name) == field.default

  def check(
    self, where: str, vocab_size: int, eos_ids: tuple[int, ...]
  ) -> None:
    """Raises UserError, one line that names it, if it cannot be run."""
    problem = _problem(self, vocab_size, eos_ids)
    if problem:
      raise UserError(f"{where}: {problem}")


def _problem(request: Request, size: int, eos_ids: tuple[int, ...]) -> str:
  """Returns what is wrong with a request, "" if nothing is."""
  r = request
  outside = [i for i in r.ids if not 0 <= i < size]
  if not r.ids:
    return "has no tokens; give at least one, such as the BOS id"
  if outside:
    return f"id {outside[0]} is outside the vocabulary of {size}"
  problem = _number_problem(r) or _sequence_problem(r, size, eos_ids)
  if problem:
    return problem
  if r.grammar is not None and not eos_ids:
    return "a grammar needs an EOS id to end the text; don't ignore it"
  if r.grammar is not None and (r.bad_words or r.min_new_tokens):
    return (
      "a grammar and bad_words or min_new_tokens could leave no token; leave "
      "one out"
    )
  return ""


def _number_problem(r: Request) -> str:
  """Returns what is wrong with the numbers, which the device must hold."""
  if r.max_new_tokens < 1:
    return f"max_new_tokens {r.max_new_tokens} must be at least 1"
  for name in ("index", "max_new_tokens"):
    if not 0 <= getattr(r, name) <= LARGEST_INT:
      return f"{name} {getattr(r, name)} must be from 0 to {LARGEST_INT}"
  if bad := r.out_of_range():
    return " ".join(map(str, bad))
  if r.min_new_tokens > r.max_new_tokens:
    return (
      f"min_new_tokens {r.min_new_tokens} must be from 0 to max_new_tokens = "
      f"{r.max_new_tokens}"
    )
  if len(r.ids) + r.max_new_tokens > MAX_LENGTH:
    return (
      f"max_new_tokens {r.max_new_tokens} after {len(r.ids)} ids make a text "
      f"of more than {MAX_LENGTH} tokens; ask for fewer"
    )
  return ""


def _sequence_problem(r: Request, size: int, eos_ids: tuple[int, ...]) -> str:
  """Returns what is wrong with biases, bad words and stop sequences."""
  sequences = (*r.bad_words, *r.stop_sequences)
  strange = [
    i
    for i in (*(t for s in sequences for t in s), *(t for t, _ in r.logit_bias))
    if not 0 <= i < size
  ]
  banned = len({s[-1] for s in sequences if s}.union(eos_ids, r.missing_ids))
  sums: dict[int, float] = {}
  for token, value in r.logit_bias:
    sums[token] = sums.get(token, 0) + value
    if not -LARGEST <= sums[token] <= LARGEST:
      return (
        f"logit_bias {token}:{value} must be finite, and at most {LARGEST:g} "
        "in size; -100 is as good as never"
      )
  if strange:
    return (
      f"id {strange[0]} of logit_bias, bad_words or stop_ids is outside the "
      f"vocabulary of {size}"
    )
  missing = [t for t, value in sums.items() if t in r.missing_ids and value > 0]
  if missing:
    return (
      f"logit_bias favours id {missing[0]}, which the tokenizer lacks; it is "
      "never generated: leave it out"
    )
  if any(not 0 <= i < size for i in r.missing_ids):
    return (
      f"missing id {max(r.missing_ids, key=abs)} is outside the vocabulary of "
      f"{size}"
    )
  if not all(sequences):
    return "bad_words and stop_ids must have a token each"
  if banned >= size:
    return f"bad_words and stop_ids could ban the whole vocabulary of {size}"
  return ""


@dataclasses.dataclass(frozen=True)
class Result:
  """What was generated for a request so far; all of it ends at the same token.

  Attributes:
    ids: generated ids; what ended the text (an EOS, a stop sequence) is last.
    logprobs: their log-probabilities under the model at temperature 1, before
      penalties and masks.
    finish_reason: "eos", "stop", "length", or "running".
    passes: trunk passes that committed them, prefill included.
    proposed: drafts that those passes verified.
    origins: for each id the tree node that proposed it, 0 for the token a pass
      adds to what it accepted.
  """

  ids: tuple[int, ...]
  logprobs: tuple[float, ...]
  finish_reason: str
  passes: int
  proposed: int
  origins: tuple[int, ...]

  @property
  def accepted(self) -> int:
    """Drafts that became text."""
    return sum(origin > 0 for origin in self.origins)


@dataclasses.dataclass(frozen=True)
class Trace:
  """The records of one row, from which a result is cut at any token.

  Attributes:
    ids: generated ids.
    logprobs: see `Result`.
    passes: passes made when each id was committed.
    proposed: drafts verified when each id was committed.
    origins: see `Result`.
    finish_reason: see `Result`.
  """

  ids: np.ndarray
  logprobs: np.ndarray
  passes: np.ndarray
  proposed: np.ndarray
  origins: np.ndarray
  finish_reason: str

  def result(self, n: int | None = None) -> Result:
    """Returns the result up to the first n tokens; None takes all."""
    is_cut = n is not None
    n = len(self.ids) if n is None else n
    return Result(
      tuple(self.ids[:n].tolist()),
      tuple(self.logprobs[:n].tolist()),
      "stop" if is_cut else self.finish_reason,
      int(self.passes[n - 1]) if n else 0,
      int(self.proposed[n - 1]) if n else 0,
      tuple(self.origins[:n].tolist()),
    )
