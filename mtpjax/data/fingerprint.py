"""The fingerprint of a prepared data folder: what it was made from."""

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Iterator
from typing import Any

from mtpjax.config import Data, read_json
from mtpjax.data.document import Document, LongText
from mtpjax.data.sources import read_documents
from mtpjax.data.text_files import Count, ignore
from mtpjax.data.tokenizer import Tokenizer
from mtpjax.errors import UserError, quoted

FORMAT = 1
FILE = "fingerprint.json"
_SETTINGS = {
  "tokenizer", "vocab_size", "bos_id", "eos_ids", "add_bos", "add_eos",
  "row_length", "validation_fraction", "seed",
}  # fmt: skip


@dataclasses.dataclass
class SourceDigest:
  """What has been read of one source: documents and a hash of them all."""

  spec: str
  is_validation: bool = False
  documents: int = 0
  _hash: Any = dataclasses.field(default_factory=hashlib.sha256)

  def add(self, document: Document) -> None:
    """Counts a document and hashes its name, parts and messages."""
    self.documents += 1
    if document.long_text is not None:
      self._add_long(document.name, document.long_text)
      return
    content: list[Any] = [document.name, document.parts]
    if document.messages:
      content.append(document.messages)
    if document.template_fields:
      content.append(document.template_fields)
    try:
      parts = json.dumps(content).encode()
    except RecursionError as error:
      raise UserError(
        f"{document.name}: nested too deeply; leave this record out"
      ) from error
    # The length in front keeps two documents apart from one long one.
    self._hash.update(len(parts).to_bytes(8))
    self._hash.update(parts)

  def _add_long(self, name: str, text: LongText) -> None:
    """Hashes what `add` would if the text were in memory."""
    start, _, end = json.dumps([name, (("", True),)]).rpartition('""')

    def parts() -> Iterator[bytes]:
      yield f'{start}"'.encode()
      # JSON spells each character by itself.
      for piece in text.pieces():
        yield json.dumps(piece)[1:-1].encode()
      yield f'"{end}'.encode()

    length = sum(map(len, parts()))
    self._hash.update(length.to_bytes(8))
    for raw in parts():
      self._hash.update(raw)
      length -= len(raw)
    if length:
      raise UserError(f"{name}: changed while it was read; try again")

  def to_dict(self) -> dict[str, Any]:
    """Returns spec, document count and SHA-256 (hex)."""
    split = {"split": "validation"} if self.is_validation else {}
    return {
      "spec": self.spec,
      "documents": self.documents,
      "sha256": self._hash.hexdigest(),
    } | split


def read_sources(
  config: Data, digests: list[SourceDigest], count: Count = ignore
) -> Iterator[Document]:
  """Reads the documents of all sources, one source after the other.

  Args:
    config: `sources`, `validation_sources`, `max_documents` and
      `replace_invalid_utf8` are used.
    digests: gets one digest per source, complete when the iterator ends.
    count: as in `read_documents`.

  Yields:
    The documents; those that were not read are yielded but neither counted
    towards `max_documents` nor hashed.

  Raises:
    UserError: a source is malformed or unreadable.
  """
  # All specs are looked at before the first, possibly long, source is read.
  specs = (*config.sources, *config.validation_sources)
  sources = [
    read_documents(spec, config.replace_invalid_utf8, count) for spec in specs
  ]
  digests += [SourceDigest(spec) for spec in config.sources]
  digests += [SourceDigest(spec, True) for spec in config.validation_sources]
  has_validation = bool(config.validation_sources)
  n_documents = 0
  for source, digest in zip(sources, digests, strict=True):
    for document in source:
      if document.is_read and not digest.is_validation:
        if config.max_documents and n_documents == config.max_documents:
          break
        n_documents += 1
      if document.is_read:
        digest.add(document)
      if has_validation:
        document = dataclasses.replace(
          document, is_held_out=digest.is_validation
        )
      yield document


def settings_of(config: Data, tokenizer: Tokenizer) -> dict[str, Any]:
  """Returns the part of the identity that is known before reading a source."""
  return {
    "tokenizer": tokenizer.fingerprint,
    "vocab_size": tokenizer.vocab_size,
    "bos_id": tokenizer.bos_id,
    "eos_ids": list(tokenizer.eos_ids),
    "add_bos": config.add_bos,
    "add_eos": config.add_eos,
    "row_length": config.row_length,
    "validation_fraction": config.validation_fraction,
    "seed": config.seed,
  }


def make_fingerprint(
  settings: dict[str, Any],
  digests: list[SourceDigest],
  tokenizer_spec: str,
  splits: dict[str, dict[str, Any]],
  n_skipped: int,
) -> dict[str, Any]:
  """Puts a fingerprint together.

  Args:
    settings: from `settings_of`.
    digests: of the sources, complete.
    tokenizer_spec: for the reader; the identity has the tokenizer's own hash.
    splits: counts for "train" and "validation".
    n_skipped: documents without a token.

  Returns:
    `format`, `id` (SHA-256 of the identity), `identity`, `tokenizer_spec`,
    `splits` and `skipped_documents`.
  """
  identity = settings | {"sources": [digest.to_dict() for digest in digests]}
  canonical = json.dumps({"format": FORMAT, **identity}, sort_keys=True)
  return {
    "format": FORMAT,
    "id": hashlib.sha256(canonical.encode()).hexdigest(),
    "identity": identity,
    "tokenizer_spec": tokenizer_spec,
    "splits": splits,
    "skipped_documents": n_skipped,
  }


def load_fingerprint(path: str | pathlib.Path) -> dict[str, Any]:
  """Reads the fingerprint of a prepared data folder.

  Args:
    path: the data folder.

  Returns:
    The fingerprint; see `make_fingerprint`.

  Raises:
    UserError: the folder or its fingerprint is missing, or is not readable.
  """
  file = pathlib.Path(path) / FILE
  if not file.is_file():
    raise UserError(
      f"{path}: no prepared data there ({FILE} is missing); run "
      f"`mtpjax prepare` with --data.path {quoted(path)}"
    )
  way_out = f"delete {path} and run `mtpjax prepare` again"
  try:
    fingerprint = read_json(file)
    found = fingerprint["format"]
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise UserError(f"{file}: damaged; {way_out}") from error
  if found != FORMAT:
    raise UserError(
      f"{file}: format {found}, this mtpjax reads {FORMAT}; {way_out}"
    )
  if not _is_whole(fingerprint):
    raise UserError(f"{file}: damaged; {way_out}")
  return fingerprint


def _is_whole(fingerprint: dict[str, Any]) -> bool:
  """Has it all that is read of it?"""
  try:
    identity = fingerprint["identity"]
    counts = [
      identity["row_length"],
      identity["vocab_size"],
      *(fingerprint["splits"][s]["rows"] for s in ("train", "validation")),
      *(source["documents"] for source in identity["sources"]),
    ]
    specs = [source["spec"] for source in identity["sources"]]
    texts = [fingerprint["id"], identity["tokenizer"], *specs]
    return (
      identity.keys() >= _SETTINGS
      and all(isinstance(count, int) and count >= 0 for count in counts)
      and all(isinstance(text, str) for text in texts)
    )
  except (KeyError, TypeError, AttributeError):
    return False


def require_prepared_for(config: Data, tokenizer: Tokenizer) -> dict[str, Any]:
  """Reads the fingerprint of `config.path`, checked against the settings.

  Args:
    config: the data section of an experiment.
    tokenizer: its tokenizer.

  Returns:
    The fingerprint.

  Raises:
    UserError: nothing is prepared there, or with other settings or sources.
  """
  path = pathlib.Path(config.path)
  fingerprint = load_fingerprint(path)
  there = fingerprint["identity"]
  require_same(path, there, settings_of(config, tokenizer))
  for name, wanted, is_validation in (
    ("sources", config.sources, False),
    ("validation sources", config.validation_sources, True),
  ):
    specs = [
      source["spec"]
      for source in there["sources"]
      if ("split" in source) == is_validation
    ]
    if specs != list(wanted):
      raise UserError(
        f"{path}: holds other data ({name} {','.join(specs) or 'none'}, not "
        f"{','.join(wanted) or 'none'}); take another --data.path or delete it"
      )
  return fingerprint


def require_same(
  path: pathlib.Path, old: dict[str, Any], new: dict[str, Any]
) -> None:
  """Checks that prepared data is what would be prepared now.

  Args:
    path: the data folder, for the message.
    old: the identity of the prepared data.
    new: the identity, or a part of it, of what is asked for.

  Raises:
    UserError: they differ; the message names each difference.
  """
  changes = []
  for key, value in new.items():
    if value == old[key]:
      continue
    if key == "sources":
      changes += _source_changes(old[key], value)
    elif key == "tokenizer":
      changes.append(f"tokenizer {old[key][:8]}, not {value[:8]}")
    else:
      changes.append(f"{key} {old[key]}, not {value}")
  if changes:
    raise UserError(
      f"{path}: holds other data ({'; '.join(changes)}); take another "
      "--data.path or delete it"
    )


def _source_changes(old: list[dict], new: list[dict]) -> list[str]:
  specs = [[source["spec"] for source in sources] for sources in (old, new)]
  if specs[0] != specs[1]:
    return [f"sources {','.join(specs[0])}, not {','.join(specs[1])}"]
  return [
    f"the contents of {a['spec']} changed "
    f"({a['documents']} documents, now {b['documents']})"
    for a, b in zip(old, new, strict=True)
    if a != b
  ]
