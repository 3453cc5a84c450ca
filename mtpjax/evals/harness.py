"""A model as the lm-evaluation-harness asks for it (extra: eval)."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from mtpjax import config as config_lib
from mtpjax.data import Tokenizer
from mtpjax.errors import UserError
from mtpjax.evals.likelihood import Scorer
from mtpjax.heads import MultiTokenModel

_LENGTHS = (
  "max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens",
)  # fmt: skip
_DEFAULT_LENGTH = 256
# Settings of sampling that both sides call the same.
_SAME = ("top_k", "top_p", "min_p", "repetition_penalty")


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

  def generate(
    self, prompts: Sequence[Any], *, ignore_eos: bool = False, **overrides: Any
  ) -> Sequence[Any]:
    """Continues prompts; the results have a `text`."""


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
  loaded: Runnable, batch_size: int = 8, max_length: int = 0
) -> Any:
  """Makes a model that `lm_eval.simple_evaluate` takes.

  Args:
    loaded: the trained model.
    batch_size: texts scored, or continued, at a time.
    max_length: tokens the model sees at most; 0 takes the length of the rows
      it was trained on.

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
      Answers.__init__(self, loaded, batch_size, max_length)

  return HarnessModel()


class Answers:
  """Answers the harness's requests; all that `TemplateLM` leaves open."""

  def __init__(self, loaded: Runnable, batch_size: int, max_length: int):
    """Scores and generates with a trained model; see `harness_model`."""
    self._loaded = loaded
    self._batch_size = batch_size
    self._scorer = Scorer(
      loaded.model,
      loaded.params["lm"],
      batch_size,
      max_length or loaded.config.data.row_length,
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
    if self._bos_id is None or add_special_tokens is False:
      return ids
    return ids if ids[:1] == [self._bos_id] else [self._bos_id, *ids]

  def _loglikelihood_tokens(
    self,
    requests: Sequence[tuple[Any, Sequence[int], Sequence[int]]],
    disable_tqdm: bool = False,
    **kwargs: Any,
  ) -> list[tuple[float, bool]]:
    """Scores (anything, context ids, continuation ids) in the given order."""
    from tqdm import tqdm

    pairs = [(context, continuation) for _, context, continuation in requests]
    with tqdm(total=len(pairs), disable=disable_tqdm, desc="scoring") as bar:
      return self._scorer.score(pairs, bar.update)

  def loglikelihood_rolling(
    self, requests: Sequence[Any], disable_tqdm: bool = False
  ) -> list[float]:
    """Returns log p of whole texts.

    Every token is scored once; behind the first window the windows are full,
    and each goes back as far as it can.
    """
    from lm_eval import utils

    owners: list[int] = []
    windows: list[tuple[str, list[int], list[int]]] = []
    for number, request in enumerate(requests):
      (text,) = request.args
      for window in utils.get_rolling_token_windows(
        self.tok_encode(text, add_special_tokens=False),
        prefix_token=self.prefix_token_id,
        max_seq_len=self.max_length,
        context_len=1,
      ):
        owners.append(number)
        windows.append((text, *utils.make_disjoint_window(window)))
    totals = [0.0] * len(requests)
    scores = self._loglikelihood_tokens(windows, disable_tqdm)
    for number, (logprob, _) in zip(owners, scores, strict=True):
      totals[number] += logprob
    return totals

  def generate_until(
    self, requests: Sequence[Any], disable_tqdm: bool = False
  ) -> list[str]:
    """Continues contexts, greedily unless a request asks for sampling.

    A context that leaves no room for what is asked loses its front; half of
    `max_length` always stays.

    Args:
      requests: with `args` (context, generation settings).
      disable_tqdm: unused; decoding refills its rows by itself.

    Returns:
      The texts, without what stopped them.

    Raises:
      UserError: a generation setting that is not known here.
    """
    prompts: list[dict[str, Any]] = []
    for number, request in enumerate(requests):
      context, asked = request.args
      settings = generation_settings(asked)
      room = self.max_length - settings["max_new_tokens"]
      keep = max(room, self.max_length // 2, 1)
      ids = self.tok_encode(context) or [self.prefix_token_id]
      # Its own seed: what is sampled does not depend on the other requests.
      prompts.append({"ids": ids[-keep:], "seed": number} | settings)
    # Prompts of like length are admitted together, the longest first.
    order = sorted(range(len(prompts)), key=lambda n: -len(prompts[n]["ids"]))
    generations = self._loaded.generate(
      [prompts[n] for n in order], batch_size=self._batch_size, **self._mode()
    )
    texts = [""] * len(prompts)
    for n, generation in zip(order, generations, strict=True):
      texts[n] = generation.text
    return texts

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
