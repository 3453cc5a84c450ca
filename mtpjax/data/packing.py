"""Packing, once and offline: documents into rows of one length.

Axes: T tokens of a row.
"""

import json
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np

from mtpjax.config import Data
from mtpjax.config.folder import is_vacant, new_folder
from mtpjax.data.corpus import (
  Pieces,
  Report,
  count_targets,
  cut_pieces,
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
from mtpjax.data.tokenizers import Tokenizer
from mtpjax.errors import UserError

# Rows open at a time. More pack tighter and slower; 64 fill 98% of rows of
# 1024 with web-sized documents.
_BINS = 64


def _no_report(documents: int, tokens: int) -> None:
  del documents, tokens


def prepare(
  config: Data, tokenizer: Tokenizer, report: Report = _no_report
) -> dict[str, Any]:
  """Tokenises the sources and packs them into rows on disk.

  Whole documents go to the train or the validation split. A document longer
  than a row is cut into pieces. Each piece is a segment of its own: attention
  does not cross it, its positions restart at 0, and its first token is
  nobody's target. Pieces are shuffled (by `config.seed`) before they are
  packed first-fit, so the first rows of a split are a fair sample of it. No
  token is dropped.

  The folder appears complete or not at all. If it is there already and was
  made from the same text, tokenizer and settings, nothing is written.

  Args:
    config: what to read and how to pack it; `config.path` is the folder.
    tokenizer: from `load_tokenizer`.
    report: called now and then with the documents and tokens read so far.

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
    return _keep(path, config, settings)
  if not is_vacant(path):
    raise UserError(
      f"{path}: exists and is not prepared data; take another --data.path"
    )
  with new_folder(path) as part:
    fingerprint = _fill_folder(part, config, tokenizer, settings, report)
  return fingerprint | {"kept": False}


def pack(
  pieces: Pieces, row_length: int, seed: int
) -> Iterator[dict[str, np.ndarray]]:
  """Packs pieces into rows with Grain's first-fit packer.

  Args:
    pieces: none longer than a row.
    row_length: tokens per row.
    seed: of the order of the pieces and of the rows packed together.

  Yields:
    Rows: `tokens`, `segments`, `positions` and `loss_mask`, each of [T].

  Raises:
    RuntimeError: the rows do not hold exactly the tokens of the pieces.
  """
  import grain

  if len(pieces) == 0:
    return
  # Threads would only cost here: the source is already in memory's reach.
  in_order = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
  packed = grain.experimental.FirstFitPackIterDataset(
    grain.MapDataset.source(pieces)
    .seed(seed)
    .shuffle()
    .to_iter_dataset(in_order),
    length_struct={"tokens": row_length, "loss_mask": row_length},
    num_packing_bins=_BINS,
    seed=seed,
    # Packed like the tokens, but needs no segments and positions of its own.
    meta_features=("loss_mask",),
  )
  n_tokens = 0
  for row in packed:
    segments_T = row["tokens_segment_ids"]
    n_tokens += int(np.count_nonzero(segments_T))
    yield {
      "tokens": row["tokens"],
      "segments": segments_T,
      "positions": row["tokens_positions"],
      "loss_mask": row["loss_mask"],
    }
  wanted = int(pieces.lengths_N.sum())
  if n_tokens != wanted:
    raise RuntimeError(f"packed {n_tokens} tokens of {wanted}")


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
  path: pathlib.Path, config: Data, settings: dict[str, Any]
) -> dict[str, Any]:
  """Checks that the folder holds what is asked for and returns its data."""
  fingerprint = load_fingerprint(path)
  # Settings first: they are known without reading the sources.
  require_same(path, fingerprint["identity"], settings)
  digests: list[SourceDigest] = []
  for _ in read_sources(config, digests):
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
) -> dict[str, Any]:
  """Writes the rows of both splits, then the fingerprint it returns."""
  named = f"data.sources: {','.join(config.sources)}"
  flat = folder / "flat"
  flat.mkdir()
  digests: list[SourceDigest] = []
  bos_id, eos_id = _bos_and_eos(config, tokenizer)
  corpus = tokenize_corpus(
    read_sources(config, digests), tokenizer, bos_id, eos_id, config.seed,
    flat, report,
  )  # fmt: skip
  if len(corpus.lengths_N) == 0:
    raise UserError(
      f"{named}: no text in {corpus.n_skipped} documents; name other sources"
    )
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
      for row in pack(pieces, config.row_length, config.seed):
        writer.append(row)
    splits[split] = {
      "documents": len(documents_N),
      "tokens": tokens,
      "targets": targets,
      "rows": writer.n_rows,
      "fill": round(tokens / max(writer.n_rows * config.row_length, 1), 6),
    }
  shutil.rmtree(flat)
  fingerprint = make_fingerprint(
    settings, digests, config.tokenizer, splits, corpus.n_skipped
  )
  text = json.dumps(fingerprint, indent=2, ensure_ascii=False) + "\n"
  (folder / FILE).write_text(text, encoding="utf-8")
  return fingerprint
