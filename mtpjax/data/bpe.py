"""Training a byte-level BPE tokenizer."""

import contextlib
import errno
import os
import pathlib
from collections.abc import Iterable, Iterator

from mtpjax import staging
from mtpjax.errors import UserError

BOS_TOKEN, EOS_TOKEN = "<s>", "</s>"
_SMALLEST = 256 + 2  # every byte, BOS and EOS


def train_bpe(
  documents: Iterable[str], vocab_size: int, path: str | pathlib.Path
) -> int:
  """Trains a byte-level BPE tokenizer and writes its `tokenizer.json`.

  The same documents in the same order give the same file. Any text without
  the names of the two special tokens survives encode and decode unchanged.

  Args:
    documents: the texts.
    vocab_size: tokens wanted: `<s>` (id 0), `</s>` (id 1), the 256 bytes and
      the merges.
    path: the file to write.

  Returns:
    The tokens there are; fewer than wanted if the texts ran out of pairs.

  Raises:
    UserError: `vocab_size` is too small, there is no text, or the file
      cannot be written.
  """
  if vocab_size < _SMALLEST:
    raise UserError(
      f"vocab_size: {vocab_size} is too small; the bytes, BOS and EOS alone "
      f"take {_SMALLEST}"
    )
  path = pathlib.Path(path)
  # Before the work is done, not after it.
  with _writing(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
      raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not os.access(path.parent, os.W_OK):
      raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
  from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

  n_characters = 0

  def counted():
    nonlocal n_characters
    for text in documents:
      n_characters += len(text)
      yield text

  tokenizer = Tokenizer(models.BPE())
  tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  tokenizer.decoder = decoders.ByteLevel()
  trainer = trainers.BpeTrainer(
    vocab_size=vocab_size,
    special_tokens=[BOS_TOKEN, EOS_TOKEN],
    initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    show_progress=False,
  )
  tokenizer.train_from_iterator(counted(), trainer)
  if n_characters == 0:
    raise UserError(
      "sources: no text to train a tokenizer on; name other sources"
    )
  with _writing(path):
    with staging.whole_file(path) as part:
      part.write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
  return tokenizer.get_vocab_size(with_added_tokens=True)


@contextlib.contextmanager
def _writing(path: pathlib.Path) -> Iterator[None]:
  """Turns what the system refuses into one line."""
  try:
    yield
  except OSError as error:
    cause = f"{error.filename}: " if error.filename is not None else ""
    raise UserError(
      f"{path}: cannot be written ({cause}{error.strerror}); take another --out"
    ) from error
