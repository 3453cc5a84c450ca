"""How a model decodes: the section `decode` of an experiment."""

import dataclasses

from mtpjax.config.checks import (
  check_kinds,
  field,
  require,
  require_not_negative,
  require_positive,
)
from mtpjax.config.sampling import Sampling
from mtpjax.errors import UserError


def _field(default, help, per_request=False):
  # How a run is decoded never makes it another run.
  return field(default, help, may_change=True, per_request=per_request)


@dataclasses.dataclass(frozen=True)
class Decode(Sampling):
  """Defaults of `generate`.

  A request may have its own value of what is marked `per_request`, which all
  numbers of `Sampling` are.
  """

  mode: str = _field("chain", "one of next, chain, tree, lookup, merged, auto")
  tree: str = _field(
    "",
    "the tree of mode tree: medusa-63, a branching per depth as 4,2,1, or a "
    "file of rank paths",
  )
  draft_length: int = _field(
    0, "tokens drafted by chain, lookup, merged; 0 takes all heads, 4, 7"
  )
  lookup_ngram: int = _field(
    3, "longest n-gram that lookup searches for, from 1 to 16"
  )
  verifier: str = _field(
    "coupled",
    "at a temperature above 0: coupled, rejection or block (all lossless), or "
    "typical (LOSSY)",
  )
  typical_epsilon: float = _field(0.09, "epsilon of the lossy typical verifier")
  typical_delta: float = _field(0.3, "delta of the lossy typical verifier")
  max_new_tokens: int = _field(256, "tokens generated per prompt", True)
  logit_bias: tuple[str, ...] = _field(
    (), "added to the logit of a token, as 50:-100 (id:bias)", True
  )
  bad_words: tuple[str, ...] = _field(
    (), "word never generated, as the tokenizer writes it", True
  )
  stop: tuple[str, ...] = _field(
    (), "string that ends the text and is left out", True
  )
  stop_ids: tuple[str, ...] = _field(
    (), "sequence of ids that ends the text, as 13,13", True
  )
  regex: str = _field(
    "", "regular expression the text must match (extra: grammar)", True
  )
  json_schema: str = _field(
    "", "JSON schema the text must match, itself or a file", True
  )
  chunk_passes: int = _field(16, "passes between looks of the host")
  batch_size: int = _field(8, "prompts decoded together at most")
  cache_tokens: int = _field(
    0, "tokens of a text at most, prompt and new ones together; 0 is no limit"
  )

  def __post_init__(self):
    check_kinds("decode", self)
    require_positive(
      "decode", self, "max_new_tokens", "chunk_passes", "batch_size",
      "lookup_ngram", "typical_epsilon", "typical_delta",
    )  # fmt: skip
    require_not_negative("decode", self, "cache_tokens", "draft_length")
    if bad := self.out_of_range():
      name, value, problem = bad
      raise UserError(f"decode.{name}: {value!r} {problem}")
    # Every length is a search of the whole text, in one program.
    require(
      self.lookup_ngram <= 16, "decode.lookup_ngram", self.lookup_ngram,
      "must be from 1 to 16",
    )  # fmt: skip
    require(
      self.chunk_passes < 1 << 31, "decode.chunk_passes", self.chunk_passes,
      "must be below 2147483648",
    )  # fmt: skip
    self._check_together()

  def _check_together(self):
    """Raises UserError for settings that contradict each other."""
    constrained = "regex" if self.regex else "json_schema"
    problem = ""
    if self.regex and self.json_schema:
      problem = "regex and json_schema cannot both decide; give one"
    elif getattr(self, constrained) and self.bad_words:
      problem = f"bad_words could leave {constrained} no token; give one"
    elif getattr(self, constrained) and self.min_new_tokens:
      problem = f"min_new_tokens could leave {constrained} no token; give one"
    elif self.min_new_tokens > self.max_new_tokens:
      problem = (
        f"min_new_tokens = {self.min_new_tokens} is more than max_new_tokens "
        f"= {self.max_new_tokens}"
      )
    if problem:
      raise UserError(f"decode: {problem}")
