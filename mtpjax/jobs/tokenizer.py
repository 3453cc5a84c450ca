"""`mtpjax tokenizer`: train a byte-level BPE tokenizer on sources."""

import pathlib
from collections.abc import Callable, Iterator, Sequence

import rich.console

from mtpjax.data import (
  InvalidText,
  cut_between_words,
  load_tokenizer,
  read_documents,
  train_bpe,
)
from mtpjax.errors import UserError, quoted
from mtpjax.jobs.reading import Reading
from mtpjax.progress import print_line


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
    console: gets progress and the result.
    replace_invalid_utf8: read bytes that are not UTF-8 as U+FFFD.

  Returns:
    The size of the vocabulary.

  Raises:
    UserError: a source cannot be read, there is no text, or `vocab_size` is
      too small.
  """
  reading = f"reading {','.join(sources)} (MB)"
  with Reading(console, reading, sources) as progress:

    def texts() -> Iterator[str]:
      yield from _texts(sources, replace_invalid_utf8, progress.count)
      progress.update(text=f"training {vocab_size:,} tokens; read (MB)")

    try:
      size = train_bpe(texts(), vocab_size, out)
    except InvalidText as error:
      raise UserError(
        f"{error}; --replace-invalid-utf8 reads it as U+FFFD"
      ) from error
  fingerprint = load_tokenizer(str(out)).fingerprint
  print_line(
    console,
    f"{out}: {size:,} tokens, fingerprint {fingerprint[:12]}; use it with "
    f"--data.tokenizer {quoted(out)}",
  )
  return size


def _texts(
  sources: Sequence[str], replace_invalid: bool, count: Callable[[int], None]
) -> Iterator[str]:
  for spec in sources:
    for document in read_documents(spec, replace_invalid, count):
      if document.long_text is not None:
        yield from cut_between_words(document.long_text.pieces(count))
      for text, _ in document.parts:
        yield text
