"""A model as the lm-evaluation-harness asks for it (extra: eval)."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from mtpjax import config as config_lib
from mtpjax.data import Tokenizer, encode_parts, with_bos
from mtpjax.errors import UserError
from mtpjax.evals.quality.likelihood import Pair, Scorer
from mtpjax.heads import MultiTokenModel

_LENGTHS = (
  "max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens",
)  # fmt: skip
_DEFAULT_LENGTH = 256
# Settings of sampling that both sides call the same.
_SAME = tuple(config_lib.NUMBERS.keys() - {"temperature", "seed"})


class Runnable(Protocol):
  """What the harness needs of a trained model; `mtpjax.load` returns it."""

  @property
  def config(self) -> config_lib.Config:
    """The experiment it was trained with."""

  @property
  def model(self) -> MultiTokenModel:
    """Applies the parameters."""

  @property
  def params(self) -> Any:
    """{"lm": ..., "heads": ...}."""

  @property
  def tokenizer(self) -> Tokenizer:
    """The run's own."""

  @property
  def max_length(self) -> int:
    """Tokens the model sees at most."""

  def generate(
    self,
    prompts: Sequence[Any],
    *,
    on_progress: Callable[[Any], None] | None = None,
    **overrides: Any,
  ) -> Sequence[Any]:
    """Continues prompts; see `Loaded.generate`.

    The results have a `text` and a `finish_reason`; `on_progress` gets what has
    `done` and `total`, numbers of prompts.
    """


# (what is happening, texts done, texts in all)
OnProgress = Callable[[str, int, int], Any]


def _warn(line: str) -> None:
  print(line, file=sys.stderr)


def import_harness() -> Any:
  """Returns the package lm_eval; UserError if it is not installed."""
  try:
    import lm_eval
  except ImportError as error:
    raise UserError(
      "lm_eval: the evaluation harness is not installed; "
      "`pip install 'mtpjax[eval]'`"
    ) from error
  return lm_eval


def harness_model(
  loaded: Runnable,
  batch_size: int = 8,
  max_length: int = 0,
  say: Callable[[str], None] = _warn,
  on_progress: OnProgress | None = None,
) -> Any:
  """Makes a model that `lm_eval.simple_evaluate` takes.

  Args:
    loaded: the trained model.
    batch_size: texts scored, or continued, at a time.
    max_length: tokens the model sees at most; 0 takes its own length, see
      `Loaded.max_length`.
    say: receives warnings of texts that do not fit, a line each.
    on_progress: called as texts are scored or continued.

  Returns:
    An `lm_eval.api.model.TemplateLM`.

  Raises:
    UserError: lm_eval is not installed, or a number is out of range.
  """
  import_harness()
  from lm_eval.api.model import TemplateLM

  class HarnessModel(Answers, TemplateLM):
    """The two sides put together."""

    def __init__(self):
      TemplateLM.__init__(self)
      Answers.__init__(self, loaded, batch_size, max_length, say, on_progress)

  return HarnessModel()


class Answers:
  """Answers the harness's requests; all that `TemplateLM` leaves open.

  Attributes:
    cut_texts: how many texts asked for so far did not fit the model's length.
  """

  def __init__(
    self,
    loaded: Runnable,
    batch_size: int,
    max_length: int,
    say: Callable[[str], None] = _warn,
    on_progress: OnProgress | None = None,
  ):
    """Scores and generates with a trained model; see `harness_model`."""
    self.cut_texts = 0
    self._loaded = loaded
    self._batch_size = batch_size
    self._say = say
    self._on_progress = on_progress
    self._scorer = Scorer(
      loaded.model,
      loaded.params["lm"],
      batch_size,
      max_length or loaded.max_length,
    )
    bos_id = loaded.tokenizer.bos_id
    self._bos_id = bos_id if loaded.config.data.add_bos else None

  @property
  def max_length(self) -> int:
    """Tokens the model sees at most."""
    return self._scorer.max_length

  @property
  def eot_token_id(self) -> int:
    """The id that ends a text; UserError if the tokenizer has none."""
    if not self._loaded.tokenizer.eos_ids:
      raise UserError(
        "data.eos_tokens: the tokenizer has neither the BOS that the run "
        "writes nor an EOS, so a text without context has nothing to begin "
        "with; name one"
      )
    return self._loaded.tokenizer.eos_ids[0]

  @property
  def prefix_token_id(self) -> int:
    """What a text without context follows: BOS if the run adds it, or EOS."""
    return self.eot_token_id if self._bos_id is None else self._bos_id

  def tok_encode(
    self, string: str, add_special_tokens: bool | None = None, **kwargs: Any
  ) -> list[int]:
    """Returns the ids of a text.

    Args:
      string: the text.
      add_special_tokens: False leaves out the BOS that begins a document
        where the run adds one; a text that has it already gets no second.
      **kwargs: unused.

    Returns:
      The ids; no EOS follows.
    """
    ids = self._loaded.tokenizer.encode(string)
    return ids if add_special_tokens is False else with_bos(ids, self._bos_id)

  def encode_pair(
    self, context: str, continuation: str
  ) -> tuple[list[int], list[int]]:
    """Returns the ids of a context, at least one, and of its continuation.

    As the harness has it, white space that ends the context belongs to the
    continuation, both are encoded as one text, and the ids after those of the
    context are the continuation's. Where a token runs across the border
    ("Ans" + "wer" is one), it is cut there, as in training; see
    `data.encode_parts`.

    Args:
      context: may be empty.
      continuation: what is scored.

    Returns:
      Both.

    Raises:
      UserError: the continuation has no tokens, so there is nothing to score;
        the log-probability of nothing is 0, the best there is.
    """
    stripped = context.rstrip()
    continuation = context[len(stripped) :] + continuation
    (context_ids, _), (ids, _) = encode_parts(
      self._loaded.tokenizer, ((stripped, False), (continuation, True))
    )
    if context_ids:
      context_ids = with_bos(context_ids, self._bos_id)
    elif len(ids) > 1 and ids[0] == self.prefix_token_id:
      return ids[:1], ids[1:]  # the text begins with BOS itself
    else:
      context_ids = [self.prefix_token_id]
    if not ids:
      raise UserError(
        f"continuation {config_lib.shown(continuation)} after "
        f"{config_lib.shown(stripped[-40:])}: has no tokens, and nothing to "
        "score; give it a text, or leave the document out of the task"
      )
    return context_ids, ids

  def loglikelihood(
    self, requests: Sequence[Any], disable_tqdm: bool = False
  ) -> list[tuple[float, bool]]:
    """Scores continuations.

    Args:
      requests: with `args` (context, continuation).
      disable_tqdm: unused; see `on_progress`.

    Returns:
      Per request the log-probability of the continuation, and whether greedy
      decoding would write it.

    Raises:
      UserError: see `encode_pair`.
    """
    return self._loglikelihood_tokens(
      [(r.args, *self.encode_pair(*r.args)) for r in requests]
    )

  def _loglikelihood_tokens(
    self,
    requests: Sequence[tuple[Any, Sequence[int], Sequence[int]]],
    disable_tqdm: bool = False,
    **kwargs: Any,
  ) -> list[tuple[float, bool]]:
    """Scores (anything, context ids, continuation ids) in the given order.

    A context that is too long loses its front. A continuation that is too long
    by itself is scored in windows, as `loglikelihood_rolling` does.
    """
    pairs: list[Pair] = []
    owners: list[int] = []
    lost = []  # tokens, of each text that loses some
    for number, (_, context, continuation) in enumerate(requests):
      excess = len(context) + len(continuation) - self.max_length - 1
      if excess > 0:
        lost.append(excess)
      new: list[Pair] = [(context, continuation)]
      if len(continuation) > self.max_length:
        new = self._windows(continuation, context[-1])
      pairs += new
      owners += [number] * len(new)
    self._tell_cut(
      len(lost), len(requests), "lose their front", max(lost, default=0)
    )
    totals = [(0.0, True)] * len(requests)
    for number, (logprob, is_greedy) in zip(
      owners, self._score(pairs), strict=True
    ):
      total, is_all_greedy = totals[number]
      totals[number] = total + logprob, is_all_greedy and is_greedy
    return totals

  def loglikelihood_rolling(
    self, requests: Sequence[Any], disable_tqdm: bool = False
  ) -> list[float]:
    """Returns log p of whole texts.

    Every token is scored once; after the first window the windows are full,
    and each goes back as far as it can. A text that begins with BOS itself
    gets no second one.
    """
    owners: list[int] = []
    windows: list[Pair] = []
    for number, request in enumerate(requests):
      (text,) = request.args
      ids = self.tok_encode(text, add_special_tokens=False)
      prefix = self.prefix_token_id
      new = self._windows(ids[ids[:1] == [prefix] :], prefix)
      owners += [number] * len(new)
      windows += new
    totals = [0.0] * len(requests)
    for number, (logprob, _) in zip(owners, self._score(windows), strict=True):
      totals[number] += logprob
    return totals

  def generate_until(
    self, requests: Sequence[Any], disable_tqdm: bool = False
  ) -> list[str]:
    """Continues contexts, greedily unless a request asks for sampling.

    A context that leaves no room for what is asked loses its front; half of
    `max_length` always stays, and the text ends where `max_length` does.

    Args:
      requests: with `args` (context, generation settings).
      disable_tqdm: unused; see `on_progress`.

    Returns:
      The texts, without what stopped them.

    Raises:
      UserError: a generation setting that is not known here.
    """
    prompts: list[dict[str, Any]] = []
    lost, shortened = [], set()
    for number, request in enumerate(requests):
      context, asked = request.args
      settings = generation_settings(asked)
      new = settings["max_new_tokens"]
      keep = max(self.max_length - new, self.max_length // 2, 1)
      ids = self.tok_encode(context) or [self.prefix_token_id]
      if len(ids) > keep:
        lost.append(len(ids) - keep)
        ids = ids[-keep:]
      room = max(self.max_length - len(ids), 1)
      if new > room:
        shortened.add(number)
        settings["max_new_tokens"] = room
      # Its own seed: what is sampled does not depend on the other requests.
      prompts.append({"ids": ids, "seed": number} | settings)
    self._tell_cut(
      len(lost), len(requests), "lose their front", max(lost, default=0)
    )
    # Prompts of like length are admitted together, the longest first.
    order = sorted(range(len(prompts)), key=lambda n: -len(prompts[n]["ids"]))
    generations = self._loaded.generate(
      [prompts[n] for n in order],
      on_progress=lambda reached: self._tell(
        "continuing texts", reached.done, reached.total
      ),
      batch_size=self._batch_size,
      **self._mode(),
    )
    texts = [""] * len(prompts)
    for n, generation in zip(order, generations, strict=True):
      texts[n] = generation.text
      if generation.finish_reason != "length":
        shortened.discard(n)
    self._tell_cut(len(shortened), len(requests), "end before max_gen_toks")
    return texts

  def _windows(self, ids: Sequence[int], prefix: int) -> list[Pair]:
    """Returns windows in which each id is scored once, after a prefix."""
    everything = [prefix, *ids]
    windows: list[Pair] = []
    for start in range(0, len(ids), self.max_length):
      end = min(start + self.max_length, len(ids))
      # The row that sees ids[end - 1] as its target ends the window.
      first = max(end - self.max_length, 0)
      windows.append(
        (everything[first : start + 1], everything[start + 1 : end + 1])
      )
    return windows

  def _score(self, pairs: Sequence[Pair]) -> list[tuple[float, bool]]:
    n_scored = 0

    def note(n: int) -> None:
      nonlocal n_scored
      n_scored += n
      self._tell("scoring texts", n_scored, len(pairs))

    self._tell("scoring texts", 0, len(pairs))
    return self._scorer.score(pairs, note)

  def _tell(self, what: str, done: int, of: int) -> None:
    if self._on_progress is not None:
      self._on_progress(what, done, of)

  def _tell_cut(self, n: int, of: int, how: str, most: int = 0) -> None:
    """Says that texts do not fit."""
    if not n:
      return
    self.cut_texts += n
    self._say(
      f"WARNING: {n:,} of {of:,} texts {how}"
      + (f" (up to {most:,} tokens)" if most else "")
      + f": the model sees {self.max_length:,} tokens; --max-length gives it "
      "another length"
    )

  def _mode(self) -> dict[str, Any]:
    """Drafts with the heads, which changes no text, and never a lossy way."""
    has_heads = self._loaded.model.heads.chain_length > 0
    return {"mode": "chain" if has_heads else "next", "verifier": "coupled"}


def generation_settings(asked: Mapping[str, Any]) -> dict[str, Any]:
  """Translates the harness's settings of a generation.

  Args:
    asked: `until` (a string or several), `max_gen_toks` (or another of its
      names), `do_sample`, `temperature`, and settings of sampling.

  Returns:
    Settings of a prompt of `Loaded.generate`.

  Raises:
    UserError: a name that is not known here.
  """
  left = dict(asked)
  lengths = [left.pop(name, None) for name in _LENGTHS]
  until = left.pop("until", None) or []
  is_sampled = left.pop("do_sample", None)
  temperature = left.pop("temperature", None)
  if temperature is None:
    temperature = 1.0 if is_sampled else 0.0
  settings = {
    "max_new_tokens": next(
      (int(n) for n in lengths if n is not None), _DEFAULT_LENGTH
    ),
    "stop": [s for s in ([until] if isinstance(until, str) else until) if s],
    "temperature": 0.0 if is_sampled is False else float(temperature),
  }
  settings |= {name: left.pop(name) for name in _SAME if name in left}
  if left.pop("num_beams", 1) != 1:
    raise UserError("generation setting num_beams: only 1 is supported")
  if left:
    raise UserError(
      f"generation setting {next(iter(left))!r}: not known; a task may set "
      "until, max_gen_toks, do_sample, temperature, " + ", ".join(_SAME)
    )
  return settings
