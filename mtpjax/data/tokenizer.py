"""What the rest of mtpjax knows of a tokenizer."""

import hashlib
import json
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from mtpjax.data.chat import ChatTemplate
from mtpjax.data.companions import CONFIG, TEMPLATE
from mtpjax.errors import UserError


class Tokenizer(Protocol):
  """What the rest of mtpjax knows of a tokenizer."""

  @property
  def vocab_size(self) -> int:
    """The largest id + 1."""

  @property
  def ids(self) -> frozenset[int]:
    """All ids that have a token; numbers may be skipped."""

  @property
  def bos_id(self) -> int | None:
    """The id that begins a document, if there is one."""

  @property
  def eos_ids(self) -> tuple[int, ...]:
    """Ids that end a text; the first is the one written. May be empty."""

  @property
  def adds_bos(self) -> bool:
    """Whether a text begins with BOS, by the tokenizer's own account."""

  @property
  def chat_template(self) -> ChatTemplate | None:
    """Makes the text of a conversation; None where there is no template."""

  @property
  def fallback_ids(self) -> frozenset[int]:
    """Ids whose text depends on the whole run of such ids they stand in.

    These are byte-fallback tokens (one invalid byte makes the whole run
    invalid) and the special ones, which `decode` skips within such a run.
    """

  @property
  def fingerprint(self) -> str:
    """SHA-256 (hex) of all that decides what the ids mean."""

  def fingerprint_within(self, vocab_size: int) -> str:
    """Returns the fingerprint without added tokens from `vocab_size` on.

    Two tokenizers that differ in nothing else mean the same to a model with
    so many ids.
    """

  def encode(self, text: str) -> list[int]:
    """Returns the ids of a text, without BOS or EOS."""

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    """Returns the same ids for several texts, on all cores."""

  def split_ids(
    self, before: str, after: str
  ) -> tuple[list[int], list[int]] | None:
    """Returns the ids of two texts in a row, those of each by themselves.

    None where those of the first would be others without the second, or a
    token or a word that is tokenised as one reaches over their border; of a
    word, only if its ids depend on the whole of it.
    """

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text of ids; special and unknown ones are skipped."""

  def token_bytes(self) -> dict[int, bytes]:
    """Returns what each ordinary id adds to a text; special ones are absent.

    Joined they are the UTF-8 of `decode`, which may leave out a space that
    begins the text.

    Raises:
      UserError: what a token adds depends on its neighbours.
    """

  def save(self, folder: pathlib.Path) -> None:
    """Writes what `load_tokenizer` needs, beside its spec, to a folder."""


def require_chat_template(tokenizer: Tokenizer, where: str) -> ChatTemplate:
  """Returns the chat template of a tokenizer.

  Args:
    tokenizer: any.
    where: the conversation; named in the error.

  Raises:
    UserError: it has none.
  """
  if tokenizer.chat_template is None:
    raise UserError(
      f"{where}: is a conversation, and the tokenizer has no chat template; "
      "give as --data.tokenizer a folder whose tokenizer.json lies beside a "
      f"{TEMPLATE}, or a {CONFIG} with chat_template"
    )
  return tokenizer.chat_template


def identity_digest(
  definition: Any,
  bos_id: int | None,
  eos_ids: Sequence[int],
  chat_template: str | None,
) -> str:
  """Returns the SHA-256 (hex) of all that makes a tokenizer what it is.

  Args:
    definition: JSON values.
    bos_id: written before each document, if any.
    eos_ids: end a text.
    chat_template: its source, if it has one.
  """
  identity = {"tokenizer": definition, "bos": bos_id, "eos": list(eos_ids)}
  if chat_template is not None:
    identity["chat_template"] = chat_template
  # Sorted keys: the same tokenizer, written with other white space, is equal.
  return hashlib.sha256(
    json.dumps(identity, sort_keys=True).encode()
  ).hexdigest()
