"""`mtpjax tokenizer`: train a byte-level BPE tokenizer on sources."""

import pathlib
from collections.abc import Iterator, Sequence

import rich.console

from mtpjax.data import (
  InvalidText,
  load_tokenizer,
  read_documents,
  train_bpe,
)
from mtpjax.errors import UserError
from mtpjax.progress import Progress


def train(
  sources: Sequence[str],
  vocab_size: int,
  out: str | pathlib.Path,
  console: rich.console.Console,
  replace_invalid_utf8: bool = False,
) -> int:
  """Trains a tokenizer and says how to use it.

  Args:
    sources: as in `--data.sources`.
    vocab_size: tokens wanted, special ones included.
    out: the `tokenizer.json` to write.
    console: gets a progress line and the result.
    replace_invalid_utf8: read bytes that are not UTF-8 as U+FFFD.

  Returns:
    The size of the vocabulary.

  Raises:
    UserError: a source cannot be read, there is no text, or `vocab_size` is
      too small.
  """
  named = ",".join(sources)
  with Progress(console, f"training {vocab_size:,} tokens on {named}"):
    try:
      texts = _texts(sources, replace_invalid_utf8)
      size = train_bpe(texts, vocab_size, out)
    except InvalidText as error:
      raise UserError(
        f"{error}; --replace-invalid-utf8 reads it as U+FFFD"
      ) from error
  fingerprint = load_tokenizer(str(out)).fingerprint
  console.print(
    f"{out}: {size:,} tokens, fingerprint {fingerprint[:12]}; use it with "
    f"--data.tokenizer {out}",
    soft_wrap=True,
    markup=False,
  )
  return size


def _texts(sources: Sequence[str], replace_invalid: bool) -> Iterator[str]:
  for spec in sources:
    for document in read_documents(spec, replace_invalid):
      for text, _ in document.parts:
        yield text
