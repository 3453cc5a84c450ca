"""Bytes as tokens."""

import hashlib
import pathlib
from collections.abc import Iterable, Sequence

import numpy as np


class ByteTokenizer:
  """Ids 0 to 255 are the bytes of UTF-8; 256 is BOS, 257 is EOS."""

  vocab_size = 258
  bos_id = 256
  eos_ids = (257,)
  adds_bos = True
  chat_template = None
  fallback_ids: frozenset[int] = frozenset()
  ids = frozenset(range(258))
  fingerprint = hashlib.sha256(b"mtpjax bytes 256 257").hexdigest()

  def fingerprint_within(self, vocab_size: int) -> str:
    """Returns the fingerprint: nothing is added to bytes."""
    del vocab_size
    return self.fingerprint

  def encode(self, text: str) -> list[int]:
    """Returns the bytes of the text's UTF-8."""
    return list(text.encode("utf-8"))

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    """Returns the bytes of each text's UTF-8."""
    return [np.frombuffer(text.encode("utf-8"), np.uint8) for text in texts]

  def split_ids(
    self, before: str, after: str
  ) -> tuple[list[int], list[int]] | None:
    """Returns the bytes of both."""
    return self.encode(before), self.encode(after)

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text of ids below 256; invalid UTF-8 gives U+FFFD."""
    return bytes(i for i in ids if 0 <= i < 256).decode("utf-8", "replace")

  def token_bytes(self) -> dict[int, bytes]:
    """Returns the byte of each id below 256."""
    return {byte: bytes([byte]) for byte in range(256)}

  def save(self, folder: pathlib.Path) -> None:
    """Writes nothing: the name says it all."""
