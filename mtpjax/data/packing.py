"""Packing, once and offline: documents into rows of one length.

Axes: T tokens of a row.
"""

import concurrent.futures
import contextlib
import errno
import importlib
import json
import pathlib
import shutil
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from mtpjax.config import Data
from mtpjax.data.corpus import (
  Pieces,
  Report,
  count_targets,
  cut_pieces,
  hold_out_tail,
  split_documents,
  tokenize_corpus,
)
from mtpjax.data.fingerprint import (
  FILE,
  SourceDigest,
  load_fingerprint,
  make_fingerprint,
  read_sources,
  require_same,
  settings_of,
)
from mtpjax.data.rows import RowWriter, row_dtypes
from mtpjax.data.text_files import Count, ignore
from mtpjax.data.tokenizer import Tokenizer
from mtpjax.errors import UserError
from mtpjax.staging import new_folder

# Rows open at a time. More pack tighter and slower; 64 fill 98% of rows of
# 1024 with web-sized documents.
_BINS = 64


def _no_report(documents: int, tokens: int) -> None:
  del documents, tokens


def prepare(
  config: Data,
  tokenizer: Tokenizer,
  report: Report = _no_report,
  count: Count = ignore,
) -> dict[str, Any]:
  """Tokenises the sources and packs them into rows on disk.

  Whole documents go to the train or the validation split; of a single one, the
  last `config.validation_fraction` of its tokens goes there, from the end of a
  paragraph, line or word on. A document longer than a row is cut into pieces.
  Each piece is a segment of its own: attention does not cross it, its positions
  restart at 0, and its first token is nobody's target. Pieces are shuffled (by
  `config.seed`) before they are packed first-fit, so the first rows of a split
  are a fair sample of it. No token is dropped.

  The folder appears complete or not at all. If it is there already and was
  made from the same text, tokenizer and settings, nothing is written.

  Args:
    config: what to read and how to pack it; `config.path` is the folder.
    tokenizer: from `load_tokenizer`.
    report: called after each document with the documents and tokens so far.
    count: called with the bytes of source files that have been read.

  Returns:
    The fingerprint (see `make_fingerprint`) and `kept`: was it there already?

  Raises:
    UserError: a source cannot be read; nothing to train on; the tokenizer
      lacks the BOS or EOS asked for; the folder holds something else.
  """
  path = pathlib.Path(config.path)
  _bos_and_eos(config, tokenizer)
  if not 0 <= config.seed < 2**32:
    raise UserError(f"data.seed: {config.seed} is not within 0 to {2**32 - 1}")
  settings = settings_of(config, tokenizer)
  if (path / FILE).exists():
    return _keep(path, config, settings, count)
  with (
    new_folder(path, FILE, "take another --data.path") as part,
    _writing(path),
  ):
    fingerprint = _fill_folder(part, config, tokenizer, settings, report, count)
  return fingerprint | {"kept": False}


@contextlib.contextmanager
def _writing(path: pathlib.Path) -> Iterator[None]:
  """Turns what the system refuses into one line."""
  try:
    yield
  except OSError as error:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
      raise UserError(
        f"{path}: cannot be written ({error.strerror}); make room, or take "
        "another --data.path"
      ) from error
    cause = f"{error.filename}: " if error.filename is not None else ""
    raise UserError(
      f"{path}: cannot be written ({cause}{error.strerror}); take another "
      "--data.path"
    ) from error


def pack(
  pieces: Pieces, row_length: int, seed: int
) -> Iterator[dict[str, np.ndarray]]:
  """Packs pieces into rows, first-fit.

  The rows are those of Grain's `FirstFitPackIterDataset` on the shuffled
  pieces, which looks at each element as a tree of arrays and takes longer than
  tokenising does.

  Args:
    pieces: none longer than a row.
    row_length: tokens per row.
    seed: of the order of the pieces and of the rows packed together.

  Yields:
    Rows, up to `_BINS` at a time: `tokens`, `segments`, `positions` and
    `loss_mask`, each of [N, T].

  Raises:
    RuntimeError: the rows do not hold exactly the tokens of the pieces.
  """
  import grain

  if len(pieces) == 0:
    return
  shuffled = grain.MapDataset.range(len(pieces)).seed(seed).shuffle()
  # Indexed, as iterating would read ahead in threads.
  order = (shuffled[n] for n in range(len(pieces)))
  n_rows = n_tokens = 0
  for bins in _first_fit(pieces.lengths_N, order, row_length):
    rows = _assemble(pieces, bins, row_length)
    order_N = np.random.default_rng(seed + n_rows).permuted(range(len(bins)))
    n_rows += len(bins)
    n_tokens += int(np.count_nonzero(rows["segments"]))
    yield {name: row_NT[order_N] for name, row_NT in rows.items()}
  wanted = int(pieces.lengths_N.sum())
  if n_tokens != wanted:
    raise RuntimeError(f"packed {n_tokens} tokens of {wanted}")


def _first_fit(
  lengths_N: np.ndarray, order: Iterable[int], row_length: int
) -> Iterator[list[list[int]]]:
  """Yields up to `_BINS` rows at a time, each the numbers of its pieces.

  Each piece goes to the first row with room for it. When there is none, all
  rows are done.
  """
  bins: list[list[int]] = []
  room_N = np.full(_BINS, row_length)
  for piece in order:
    fits_N = room_N >= lengths_N[piece]
    row = int(fits_N.argmax())
    if not fits_N[row]:
      yield bins
      bins, row = [], 0
      room_N[:] = row_length
    if row == len(bins):
      bins.append([])
    bins[row].append(piece)
    room_N[row] -= lengths_N[piece]
  if bins:
    yield bins


def _assemble(
  pieces: Pieces, bins: list[list[int]], row_length: int
) -> dict[str, np.ndarray]:
  """Returns the rows of the pieces, padding where there are none."""
  shape = len(bins), row_length
  tokens_NT = np.zeros(shape, pieces[bins[0][0]]["tokens"].dtype)
  segments_NT, positions_NT = (
    np.zeros(shape, np.int32),
    np.zeros(shape, np.int32),
  )
  mask_NT = np.zeros(shape, np.bool_)
  ages_T = np.arange(row_length)
  for row, numbers in enumerate(bins):
    start = 0
    for segment, number in enumerate(numbers, start=1):
      piece = pieces[number]
      run = slice(start, start + len(piece["tokens"]))
      tokens_NT[row, run] = piece["tokens"]
      mask_NT[row, run] = piece["loss_mask"]
      segments_NT[row, run] = segment
      positions_NT[row, run] = ages_T[: run.stop - start]
      start = run.stop
  return {
    "tokens": tokens_NT,
    "segments": segments_NT,
    "positions": positions_NT,
    "loss_mask": mask_NT,
  }


def _bos_and_eos(
  config: Data, tokenizer: Tokenizer
) -> tuple[int | None, int | None]:
  """Returns the ids to write around a document; None writes none."""
  for option, is_wanted, is_there in (
    ("bos", config.add_bos, tokenizer.bos_id is not None),
    ("eos", config.add_eos, len(tokenizer.eos_ids) > 0),
  ):
    if is_wanted and not is_there:
      name = f"--data.{option}-token" + ("s" if option == "eos" else "")
      raise UserError(
        f"data.add_{option}: true, but {config.tokenizer} has no "
        f"{option.upper()} token; name one with {name} or take "
        f"--data.add-{option} false"
      )
  return (
    tokenizer.bos_id if config.add_bos else None,
    tokenizer.eos_ids[0] if config.add_eos else None,
  )


def _keep(
  path: pathlib.Path, config: Data, settings: dict[str, Any], count: Count
) -> dict[str, Any]:
  """Checks that the folder holds what is asked for and returns its data."""
  fingerprint = load_fingerprint(path)
  # Settings first: they are known without reading the sources.
  require_same(path, fingerprint["identity"], settings)
  digests: list[SourceDigest] = []
  for _ in read_sources(config, digests, count):
    pass
  sources = [digest.to_dict() for digest in digests]
  require_same(path, fingerprint["identity"], {"sources": sources})
  return fingerprint | {"kept": True}


def _fill_folder(
  folder: pathlib.Path,
  config: Data,
  tokenizer: Tokenizer,
  settings: dict[str, Any],
  report: Report,
  count: Count,
) -> dict[str, Any]:
  """Writes the rows of both splits, then the fingerprint it returns."""
  named = f"data.sources: {','.join(config.sources)}"
  flat = folder / "flat"
  flat.mkdir()
  digests: list[SourceDigest] = []
  bos_id, eos_id = _bos_and_eos(config, tokenizer)
  # Grain takes a second to import: time enough while texts are tokenised. It
  # ends before anything else does; Python shutting down would break it.
  with concurrent.futures.ThreadPoolExecutor(1) as meanwhile:
    meanwhile.submit(importlib.import_module, "grain")
    corpus = tokenize_corpus(
      read_sources(config, digests, count), tokenizer, bos_id, eos_id,
      config.seed, flat, report, count,
    )  # fmt: skip
  if len(corpus.lengths_N) == 0:
    raise UserError(
      f"{named}: no text in {corpus.n_skipped} documents; name other sources"
    )
  tail = hold_out_tail(
    corpus, tokenizer, config.validation_fraction, config.row_length
  )
  if tail is not None:
    corpus = tail
    settings = settings | {"held_out": "tail"}
  splits = {}
  for split, documents_N in split_documents(
    corpus, config.validation_fraction
  ).items():
    pieces = cut_pieces(corpus, documents_N, config.row_length)
    tokens, targets = count_targets(pieces)
    if split == "train" and targets == 0:
      raise UserError(
        f"{named}: no token to train on (each needs one before it); name "
        "longer texts or completions"
      )
    dtypes = row_dtypes(tokenizer.vocab_size, config.row_length)
    with RowWriter(folder / split, dtypes, config.row_length) as writer:
      for rows in pack(pieces, config.row_length, config.seed):
        writer.append(rows)
    splits[split] = {
      "documents": len(documents_N),
      "tokens": tokens,
      "targets": targets,
      "rows": writer.n_rows,
      "fill": round(tokens / max(writer.n_rows * config.row_length, 1), 6),
    }
  splits["validation"]["shared"] = corpus.n_shared
  corpus.close()
  shutil.rmtree(flat)
  fingerprint = make_fingerprint(
    settings, digests, config.tokenizer, splits, corpus.n_skipped
  )
  text = json.dumps(fingerprint, indent=2, ensure_ascii=False) + "\n"
  (folder / FILE).write_text(text, encoding="utf-8")
  return fingerprint
