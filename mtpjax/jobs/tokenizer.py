"""`mtpjax tokenizer`: train a byte-level BPE tokenizer on sources."""

import pathlib
from collections.abc import Iterator, Sequence

import rich.console
import rich.markup

from mtpjax.data import load_tokenizer, read_documents, train_bpe


def train(
  sources: Sequence[str],
  vocab_size: int,
  out: str | pathlib.Path,
  console: rich.console.Console,
) -> int:
  """Trains a tokenizer and says how to use it.

  Args:
    sources: as in `--data.sources`.
    vocab_size: tokens wanted, special ones included.
    out: the `tokenizer.json` to write.
    console: gets a progress line and the result.

  Returns:
    The size of the vocabulary.

  Raises:
    UserError: a source cannot be read, there is no text, or `vocab_size` is
      too small.
  """
  named = rich.markup.escape(",".join(sources))
  with console.status(f"training {vocab_size:,} tokens on {named}"):
    size = train_bpe(_texts(sources), vocab_size, out)
  fingerprint = load_tokenizer(str(out)).fingerprint
  console.print(
    f"{out}: {size:,} tokens, fingerprint {fingerprint[:12]}; use it with "
    f"--data.tokenizer {out}",
    soft_wrap=True,
    markup=False,
  )
  return size


def _texts(sources: Sequence[str]) -> Iterator[str]:
  for spec in sources:
    for document in read_documents(spec):
      for text, _ in document.parts:
        yield text
