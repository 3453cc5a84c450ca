"""What each request of a batch asks for, as arrays of fixed shape.

Axes: B requests, V vocabulary, W sequences, L tokens of the longest of them.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from mtpjax.config import NUMBERS
from mtpjax.decode import noise
from mtpjax.decode.buckets import bucket
from mtpjax.decode.filters import FILTERS
from mtpjax.decode.requests import Request

_LEAST = 4  # sequences and their lengths are padded to powers of two from here


@dataclasses.dataclass(frozen=True)
class Stages:
  """Which stages of the logits pipeline a program has; the rest costs nothing.

  Attributes:
    is_sampled: some request has a temperature above 0.
    penalises: repetition, frequency or presence penalties.
    biases: logit biases.
    bans: bad words, or a least number of tokens.
    stops: sequences of ids that end a text.
    truncates: top-k, top-p or min-p.
    is_constrained: grammars.
  """

  is_sampled: bool = False
  penalises: bool = False
  biases: bool = False
  bans: bool = False
  stops: bool = False
  truncates: bool = False
  is_constrained: bool = False

  @classmethod
  def of(cls, requests: Sequence[Request]) -> "Stages":
    """Returns what these requests need."""

    def needs(*names: str) -> bool:
      return any(not r.is_neutral(name) for r in requests for name in names)

    return cls(
      is_sampled=needs("temperature"),
      penalises=needs(
        "repetition_penalty", "frequency_penalty", "presence_penalty"
      ),
      biases=any(r.logit_bias for r in requests),
      bans=any(r.bad_words or r.min_new_tokens for r in requests),
      stops=any(r.stop_sequences for r in requests),
      truncates=needs(*FILTERS),
      is_constrained=any(r.grammar is not None for r in requests),
    )

  def missing_from(self, others: "Stages") -> list[str]:
    """Returns the names of stages that are here and not there."""
    return [
      field.name
      for field in dataclasses.fields(self)
      if getattr(self, field.name) and not getattr(others, field.name)
    ]


class Sequences(struct.PyTreeNode):
  """Sequences of ids, written to the right end of their rows.

  Attributes:
    tokens_BWL: the ids; what is left of a sequence means nothing.
    lengths_BW: their lengths; 0 is no sequence.
  """

  tokens_BWL: jax.Array
  lengths_BW: jax.Array

  @classmethod
  def pack(
    cls, rows: Sequence[Sequence[Sequence[int]]], shape: tuple[int, int]
  ) -> "Sequences":
    """Lays the sequences of each request out; shape is (W, L)."""
    tokens = np.zeros((len(rows), *shape), np.int32)
    lengths = np.zeros((len(rows), shape[0]), np.int32)
    for b, sequences in enumerate(rows):
      for w, ids in enumerate(sequences):
        tokens[b, w, shape[1] - len(ids) :] = ids
        lengths[b, w] = len(ids)
    return cls(jnp.asarray(tokens), jnp.asarray(lengths))


class Controls(struct.PyTreeNode):
  """One value per request of everything but the text.

  Attributes:
    keys_B: PRNG keys.
    max_new_B: tokens to generate at most.
    numbers: those of `config.Sampling`, and of filters, by name, [B] each.
    bias_BV: added to the logits; None in programs without that stage.
    bad_words: never generated; None likewise.
    stop_sequences: end a text; None likewise.
  """

  keys_B: jax.Array
  max_new_B: jax.Array
  numbers: dict[str, jax.Array]
  bias_BV: jax.Array | None
  bad_words: Sequences | None
  stop_sequences: Sequences | None

  @property
  def is_sampled_B(self) -> jax.Array:
    """Rows of a temperature above 0."""
    return self.numbers["temperature"] > 0


@dataclasses.dataclass(frozen=True)
class ControlShapes:
  """Shapes that all requests of a run share.

  Attributes:
    stages: of the program.
    vocab_size: V.
    bad_words: (W, L).
    stop_sequences: (W, L).
  """

  stages: Stages
  vocab_size: int
  bad_words: tuple[int, int] = (_LEAST, _LEAST)
  stop_sequences: tuple[int, int] = (_LEAST, _LEAST)

  @classmethod
  def of(
    cls, stages: Stages, requests: Sequence[Request], vocab_size: int
  ) -> "ControlShapes":
    """Returns shapes, in powers of two, that hold these requests."""

    def shape(rows: Sequence[Sequence[Sequence[int]]]) -> tuple[int, int]:
      most = max((len(row) for row in rows), default=0)
      longest = max((len(ids) for row in rows for ids in row), default=0)
      return bucket(most, _LEAST), bucket(longest, _LEAST)

    return cls(
      stages,
      vocab_size,
      shape([r.bad_words for r in requests]),
      shape([r.stop_sequences for r in requests]),
    )

  def pack(self, requests: Sequence[Request]) -> Controls:
    """Lays requests out as arrays.

    Args:
      requests: B of them.

    Returns:
      The controls.
    """

    fields = {f.name: f for r in requests for f in dataclasses.fields(r)}

    def row(name: str) -> jax.Array:
      dtype = np.int32 if fields[name].type is int else np.float32
      values = [getattr(r, name, fields[name].default) for r in requests]
      return jnp.asarray(np.array(values, dtype))

    stages = self.stages
    bias_BV = None
    if stages.biases:
      bias = np.zeros((len(requests), self.vocab_size), np.float32)
      for b, request in enumerate(requests):
        for token, value in request.logit_bias:
          bias[b, token] += value
      bias_BV = jnp.asarray(bias)
    return Controls(
      keys_B=jax.vmap(noise.request_key)(row("seed"), row("index")),
      max_new_B=row("max_new_tokens"),
      numbers={n: row(n) for n in (*NUMBERS, *FILTERS) if n in fields},
      bias_BV=bias_BV,
      bad_words=Sequences.pack([r.bad_words for r in requests], self.bad_words)
      if stages.bans
      else None,
      stop_sequences=Sequences.pack(
        [r.stop_sequences for r in requests], self.stop_sequences
      )
      if stages.stops
      else None,
    )
