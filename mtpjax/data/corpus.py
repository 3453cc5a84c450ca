"""The tokenised corpus: every document once, end to end, in flat files.

Axes: N documents or pieces, T tokens.
"""

import array
import concurrent.futures
import dataclasses
import hashlib
import itertools
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from mtpjax.data.blocks import Block, cut_blocks, join_blocks
from mtpjax.data.document import Document
from mtpjax.data.document_ids import document_ids
from mtpjax.data.text_files import Count, ignore
from mtpjax.data.tokenizer import Tokenizer

# Tokens either side of where a tail should begin, to find a good place.
_SLACK = 512
# Characters tokenised at a time, and what a document counts for at least.
_BATCH, _LEAST = 2**19 * min(os.cpu_count() or 1, 8), 2**8

Report = Callable[[int, int], None]


class FlatFile:
  """An array on disk that is read by slices, never mapped.

  What is mapped counts as memory of the process, up to all of the file.
  """

  def __init__(self, path: pathlib.Path, dtype: np.dtype):
    self._dtype = dtype
    self._file = open(path, "rb")
    self._length = os.fstat(self._file.fileno()).st_size // dtype.itemsize

  def __len__(self) -> int:
    return self._length

  def __getitem__(self, run: slice) -> np.ndarray:
    start, stop, _ = run.indices(self._length)
    size = self._dtype.itemsize
    raw = os.pread(
      self._file.fileno(), max(stop - start, 0) * size, start * size
    )
    return np.frombuffer(raw, self._dtype)

  def close(self) -> None:
    """Closes the file."""
    self._file.close()


@dataclasses.dataclass(frozen=True)
class Corpus:
  """Tokenised documents.

  Attributes:
    tokens_T: ids of all documents, end to end.
    loss_mask_T: may the token be a target? (bool)
    lengths_N: tokens of each document, BOS and EOS included.
    draws_N: a number in [0, 1) of each document's name and the seed; those
      with the smallest are held out. -1 and 2 where the source decides.
    n_skipped: documents that had no token, and conversations in which the
      assistant says nothing.
    n_shared: documents of validation sources that are a document of the
      training sources too, token by token.
  """

  tokens_T: FlatFile
  loss_mask_T: FlatFile
  lengths_N: np.ndarray
  draws_N: np.ndarray
  n_skipped: int
  n_shared: int = 0

  def close(self) -> None:
    """Closes the files."""
    self.tokens_T.close()
    self.loss_mask_T.close()


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
  count: Count = ignore,
) -> Corpus:
  """Tokenises documents into two flat files; see `document_ids`.

  Args:
    documents: what to tokenise; one whose text gives no token is skipped, as
      is a conversation without an assistant.
    tokenizer: applied to each document by itself.
    bos_id: written before each document; None writes none.
    eos_id: written after each document; None writes none.
    seed: of the draws that decide the split.
    folder: where the flat files go.
    report: called after each document with the documents and tokens so far.
    count: called with the bytes read of long texts.

  Returns:
    The corpus.

  Raises:
    UserError: a conversation, and the tokenizer has no chat template or it
      fails.
  """
  dtype = token_dtype(tokenizer.vocab_size)
  lengths, draws = array.array("q"), array.array("d")
  # Digests of the documents of either split, where sources decide that.
  digests = {True: array.array("Q"), False: array.array("Q")}
  n_skipped = n_tokens = 0
  tokens_file, mask_file = folder / "tokens.flat", folder / "loss_mask.flat"
  stretches = _cut(documents, tokenizer, bos_id, eos_id, count)
  with open(tokens_file, "wb") as tokens, open(mask_file, "wb") as mask:
    for document, parts in _encode_all(stretches, tokenizer, bos_id, eos_id):
      length, digest = 0, hashlib.blake2b(digest_size=8)
      for ids_T, is_trained in parts:
        raw = ids_T.astype(dtype).tobytes()
        tokens.write(raw)
        if document.is_held_out is not None:
          digest.update(raw)
        mask.write((b"\x01" if is_trained else b"\x00") * len(ids_T))
        length += len(ids_T)
      if not length:
        n_skipped += 1
        continue
      lengths.append(length)
      if document.is_held_out is not None:
        value = int.from_bytes(digest.digest())
        digests[document.is_held_out].append(value)
      draws.append(
        held_out_draw(seed, document.name)
        if document.is_held_out is None
        else -1.0
        if document.is_held_out
        else 2.0
      )
      n_tokens += length
      report(len(lengths), n_tokens)
  return Corpus(
    FlatFile(tokens_file, dtype),
    FlatFile(mask_file, np.dtype(np.bool_)),
    np.array(lengths, np.int64),
    np.array(draws, np.float64),
    n_skipped,
    int(np.isin(np.array(digests[True]), np.array(digests[False])).sum()),
  )


@dataclasses.dataclass(frozen=True)
class _Stretch:
  """A document, or a block of one, on its way to ids.

  Attributes:
    number: of the document.
    document: what it belongs to.
    block: of plain text, to be tokenised; None where `parts` are known.
    parts: (ids, are they trained?) in order, complete.
  """

  number: int
  document: Document
  block: Block | None
  parts: Sequence[tuple[list[int], bool]] = ()


def _cut(
  documents: Iterable[Document],
  tokenizer: Tokenizer,
  bos_id: int | None,
  eos_id: int | None,
  count: Count,
) -> Iterator[_Stretch]:
  """Yields all documents in stretches, plain texts not yet tokenised."""
  for number, document in enumerate(documents):
    if document.long_text is None and not _is_plain(document):
      parts = document_ids(document, tokenizer, bos_id, eos_id)
      yield _Stretch(number, document, None, parts)
    else:
      pieces = (
        (document.parts[0][0],)
        if document.long_text is None
        else document.long_text.pieces(count)
      )
      for block in cut_blocks(pieces, tokenizer):
        yield _Stretch(number, document, block)


def _is_plain(document: Document) -> bool:
  is_one = len(document.parts) == 1 and document.parts[0][1]
  return is_one and not document.messages


def _encode_all(
  stretches: Iterable[_Stretch],
  tokenizer: Tokenizer,
  bos_id: int | None,
  eos_id: int | None,
) -> Iterator[tuple[Document, Iterator[tuple[np.ndarray, bool]]]]:
  """Yields documents, each with (ids, are they trained?) in order."""
  encoded = _encode_ahead(stretches, tokenizer)
  for _, group in itertools.groupby(encoded, lambda pair: pair[0].number):
    stretch, ids_T = next(group)
    if stretch.block is None:
      known = ((np.array(ids), is_on) for ids, is_on in stretch.parts)
      yield stretch.document, known
      continue
    blocks = (
      (other.block, other_T)
      for other, other_T in itertools.chain([(stretch, ids_T)], group)
      if other.block is not None
    )
    runs = _with_ends(join_blocks(blocks, tokenizer), bos_id, eos_id)
    yield stretch.document, ((run_T, True) for run_T in runs)


def _encode_ahead(
  stretches: Iterable[_Stretch], tokenizer: Tokenizer
) -> Iterator[tuple[_Stretch, np.ndarray]]:
  """Yields each stretch with the ids of its block's text.

  While one batch is tokenised on all cores, the next is read.
  """
  with concurrent.futures.ThreadPoolExecutor(1) as executor:
    waiting = None
    for batch in _batches(stretches):
      texts = [s.block.text if s.block else "" for s in batch]
      coming = batch, executor.submit(tokenizer.encode_batch, texts)
      if waiting is not None:
        yield from zip(waiting[0], waiting[1].result(), strict=True)
      waiting = coming
    if waiting is not None:
      yield from zip(waiting[0], waiting[1].result(), strict=True)


def _batches(stretches: Iterable[_Stretch]) -> Iterator[list[_Stretch]]:
  batch: list[_Stretch] = []
  size = 0
  for stretch in stretches:
    batch.append(stretch)
    size += _LEAST + (len(stretch.block.text) if stretch.block else 0)
    if size >= _BATCH:
      yield batch
      batch, size = [], 0
  if batch:
    yield batch


def _with_ends(
  runs: Iterable[np.ndarray], bos_id: int | None, eos_id: int | None
) -> Iterator[np.ndarray]:
  """Puts BOS and EOS around ids, if there are any; see `document_ids`."""
  n_ids, last = 0, None
  for run_T in runs:
    if len(run_T) == 0:
      continue
    if n_ids == 0 and bos_id is not None and run_T[0] != bos_id:
      yield np.array([bos_id])
      n_ids += 1
    yield run_T
    n_ids += len(run_T)
    last = run_T[-1]
  # One id that is both has begun the text.
  ends = last == eos_id and (n_ids > 1 or eos_id != bos_id)
  if n_ids > 0 and eos_id is not None and not ends:
    yield np.array([eos_id])


def split_documents(
  corpus: Corpus, validation_fraction: float
) -> dict[str, np.ndarray]:
  """Decides by document what is held out.

  Args:
    corpus: the documents and their draws.
    validation_fraction: share held out, on average. If it is above 0 and
      there are two documents, both splits get at least one. A single
      document is for training. Where sources decide, it plays no part.

  Returns:
    For "train" and "validation" the document numbers, in order.
  """
  held_out_N = corpus.draws_N < validation_fraction
  if _is_drawn(corpus) and validation_fraction > 0 and len(held_out_N) > 0:
    held_out_N[np.argmin(corpus.draws_N)] = True
    # Last, so that training wins where there is one document. Equal draws
    # (copies of one document) make two of one: take the last of the largest.
    held_out_N[-1 - int(np.argmax(corpus.draws_N[::-1]))] = False
  return {
    "train": np.flatnonzero(~held_out_N),
    "validation": np.flatnonzero(held_out_N),
  }


def _is_drawn(corpus: Corpus) -> bool:
  """Do names decide what is held out, not sources?"""
  return bool(np.all((corpus.draws_N >= 0) & (corpus.draws_N < 1)))


def hold_out_tail(
  corpus: Corpus,
  tokenizer: Tokenizer,
  validation_fraction: float,
  row_length: int,
) -> Corpus | None:
  """Cuts the only document in two, the end of it for validation.

  The cut is made near the share wanted, where a paragraph ends if one does
  there; else a line, a word, a character.

  Args:
    corpus: any.
    tokenizer: of its ids.
    validation_fraction: the share of the tokens to hold out.
    row_length: tokens of a row.

  Returns:
    A corpus of two documents whose draws send them to their splits. None if
    there are several, if nothing is to be held out or a source says what is, if
    all of it fits into one row,
    or if either part would have no target.
  """
  if len(corpus.lengths_N) != 1 or not _is_drawn(corpus):
    return None
  length = int(corpus.lengths_N[0])
  tail = max(round(length * validation_fraction), 2)
  if validation_fraction == 0 or length <= max(row_length, tail + 2):
    return None
  cut = _border(corpus, tokenizer, length - tail, min(tail, length - tail) // 2)
  halves = dataclasses.replace(
    corpus,
    lengths_N=np.array([cut, length - cut], np.int64),
    draws_N=np.array([2.0, -1.0]),
  )
  for number in (0, 1):
    pieces = cut_pieces(halves, np.array([number]), row_length)
    if count_targets(pieces)[1] == 0:
      return None
  return halves


def _border(
  corpus: Corpus, tokenizer: Tokenizer, wanted: int, slack: int
) -> int:
  """Returns the best place for a cut within `slack` tokens of the wanted."""
  slack = min(slack, _SLACK)
  first = max(wanted - slack - 8, 0)
  ids = corpus.tokens_T[first : wanted + slack + 8].tolist()

  def rank(place: int) -> tuple[int, int]:
    at = place - first
    before = tokenizer.decode(ids[max(at - 4, 0) : at])
    around = tokenizer.decode(ids[max(at - 1, 0) : at + 1])
    after = tokenizer.decode(ids[at : at + 8])
    lines = before.rsplit("\n", 2)
    if len(lines) > 1 and not lines[-1].strip():
      kind = 0 if len(lines) > 2 and not lines[-2].strip() else 1
    elif len(around.strip().split()) > 1 or around != around.rstrip():
      kind = 2
    else:
      kind = 4 if after.startswith("\ufffd") else 3
    return kind, abs(place - wanted)

  return min(range(wanted - slack, wanted + slack + 1), key=rank)


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
