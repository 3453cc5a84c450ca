"""The tokenised corpus: every document once, end to end, in flat files.

Axes: N documents or pieces, T tokens.
"""

import array
import dataclasses
import hashlib
import pathlib
from collections.abc import Callable, Iterable

import numpy as np

from mtpjax.data.document import Document
from mtpjax.data.document_ids import document_ids
from mtpjax.data.tokenizers import Tokenizer

# Progress is told after so many tokens: a few times a second.
_REPORT_EVERY = 200_000

Report = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True)
class Corpus:
  """Tokenised documents.

  Attributes:
    tokens_T: ids of all documents, end to end; memory-mapped.
    loss_mask_T: may the token be a target? (bool)
    lengths_N: tokens of each document, BOS and EOS included.
    draws_N: a number in [0, 1) of each document's name and the seed; those
      with the smallest are held out. -1 and 2 where the source decides.
    n_skipped: documents that had no token, and conversations in which the
      assistant says nothing.
  """

  tokens_T: np.ndarray
  loss_mask_T: np.ndarray
  lengths_N: np.ndarray
  draws_N: np.ndarray
  n_skipped: int


@dataclasses.dataclass(frozen=True)
class Pieces:
  """Runs of a corpus, at most a row long; a random-access Grain source."""

  corpus: Corpus
  starts_N: np.ndarray
  lengths_N: np.ndarray

  def __len__(self) -> int:
    return len(self.starts_N)

  def __getitem__(self, index: int) -> dict[str, np.ndarray]:
    start = self.starts_N[index]
    run = slice(start, start + self.lengths_N[index])
    return {
      "tokens": self.corpus.tokens_T[run],
      "loss_mask": self.corpus.loss_mask_T[run],
    }


def token_dtype(vocab_size: int) -> np.dtype:
  """Returns the narrowest of uint16 and uint32 that holds every id."""
  return np.dtype(np.uint16 if vocab_size <= 2**16 else np.uint32)


def held_out_draw(seed: int, name: str) -> float:
  """Returns the number in [0, 1) that decides a document's split.

  It depends on nothing but its arguments, so a document stays in its split
  when others are added, and its copies go where it goes.
  """
  digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
  return int.from_bytes(digest[:6]) / 2**48


def tokenize_corpus(
  documents: Iterable[Document],
  tokenizer: Tokenizer,
  bos_id: int | None,
  eos_id: int | None,
  seed: int,
  folder: pathlib.Path,
  report: Report,
) -> Corpus:
  """Tokenises documents into two flat files; see `document_ids`.

  Args:
    documents: what to tokenise; one whose text gives no token is skipped, as
      is a conversation without an assistant.
    tokenizer: applied to each document by itself.
    bos_id: written before each document; None writes none.
    eos_id: written after each document; None writes none.
    seed: of the draws that decide the split.
    folder: where the flat files go; they are mapped, so keep it meanwhile.
    report: called now and then with the documents and tokens so far.

  Returns:
    The corpus.

  Raises:
    UserError: a conversation, and the tokenizer has no chat template or it
      fails.
  """
  dtype = token_dtype(tokenizer.vocab_size)
  lengths, draws = array.array("q"), array.array("d")
  n_skipped = n_tokens = reported = 0
  tokens_file, mask_file = folder / "tokens.flat", folder / "loss_mask.flat"
  with open(tokens_file, "wb") as tokens, open(mask_file, "wb") as mask:
    for document in documents:
      parts = document_ids(document, tokenizer, bos_id, eos_id)
      if not parts:
        n_skipped += 1
        continue
      length = 0
      for ids, is_trained in parts:
        tokens.write(np.array(ids, dtype).tobytes())
        mask.write((b"\x01" if is_trained else b"\x00") * len(ids))
        length += len(ids)
      lengths.append(length)
      draws.append(
        held_out_draw(seed, document.name)
        if document.is_held_out is None
        else -1.0
        if document.is_held_out
        else 2.0
      )
      n_tokens += length
      if n_tokens - reported >= _REPORT_EVERY:
        report(len(lengths), n_tokens)
        reported = n_tokens
  report(len(lengths), n_tokens)
  return Corpus(
    _map(tokens_file, dtype),
    _map(mask_file, np.dtype(np.bool_)),
    np.array(lengths, np.int64),
    np.array(draws, np.float64),
    n_skipped,
  )


def split_documents(
  corpus: Corpus, validation_fraction: float
) -> dict[str, np.ndarray]:
  """Decides by document what is held out.

  Args:
    corpus: the documents and their draws.
    validation_fraction: share held out, on average. If it is above 0 and
      there are two documents, both splits get at least one. A single
      document is for training.

  Returns:
    For "train" and "validation" the document numbers, in order.
  """
  held_out_N = corpus.draws_N < validation_fraction
  if validation_fraction > 0 and len(held_out_N) > 0:
    held_out_N[np.argmin(corpus.draws_N)] = True
    # Last, so that training wins where there is one document. Equal draws
    # (copies of one document) make two of one: take the last of the largest.
    held_out_N[-1 - int(np.argmax(corpus.draws_N[::-1]))] = False
  return {
    "train": np.flatnonzero(~held_out_N),
    "validation": np.flatnonzero(held_out_N),
  }


def cut_pieces(
  corpus: Corpus, documents_N: np.ndarray, row_length: int
) -> Pieces:
  """Cuts documents longer than a row into pieces; no token is lost.

  Args:
    corpus: the documents.
    documents_N: numbers of the documents to cut.
    row_length: tokens a piece may have; only a document's last has fewer.

  Returns:
    The pieces, in the order of the documents.
  """
  starts_N = (np.cumsum(corpus.lengths_N) - corpus.lengths_N)[documents_N]
  lengths_N = corpus.lengths_N[documents_N]
  counts_N = -(-lengths_N // row_length)
  before_N = np.cumsum(counts_N) - counts_N
  within_N = np.arange(counts_N.sum()) - np.repeat(before_N, counts_N)
  offsets_N = within_N * row_length
  return Pieces(
    corpus,
    np.repeat(starts_N, counts_N) + offsets_N,
    np.minimum(row_length, np.repeat(lengths_N, counts_N) - offsets_N),
  )


def count_targets(pieces: Pieces) -> tuple[int, int]:
  """Counts what a split holds.

  Args:
    pieces: of the split.

  Returns:
    (tokens, targets): a target is trained and has a token before it in its
    piece, so that the next-token loss can use it.
  """
  targets = 0
  for start, length in zip(pieces.starts_N, pieces.lengths_N, strict=True):
    mask_T = pieces.corpus.loss_mask_T[start + 1 : start + length]
    targets += int(np.count_nonzero(mask_T))
  return int(pieces.lengths_N.sum()), targets


def _map(path: pathlib.Path, dtype: np.dtype) -> np.ndarray:
  if path.stat().st_size == 0:
    return np.zeros(0, dtype)
  # A plain view: slicing the memmap class itself is several times slower.
  return np.asarray(np.memmap(path, dtype, mode="r"))
