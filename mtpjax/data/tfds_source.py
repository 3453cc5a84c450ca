"""The source `tfds:NAME:SPLIT[:FIELD]`: TensorFlow Datasets, no TensorFlow."""

import os
import re
from collections.abc import Iterator
from typing import Any

from mtpjax.data.document import Document, document_from_record
from mtpjax.errors import UserError

# NAME may end in a version (`:1.0.0`), SPLIT may be sliced (`train[:10%]`).
_SPEC = re.compile(
  r"(?P<name>[^:]+(?::\d+\.\d+\.\d+)?)"
  r":(?P<split>(?:[^:\[\]]|\[[^\]]*\])+)"
  r"(?::(?P<fields>[^:]+))?"
)


def read_tfds(
  spec: str, rest: str, replace_invalid: bool
) -> Iterator[Document]:
  """Reads a prepared array_record data set; nothing is ever downloaded.

  Args:
    spec: the whole source, for error messages.
    rest: the source without `tfds:`.
    replace_invalid: as in `decode_utf8`.

  Returns:
    An iterator over the documents, in the order they are stored.

  Raises:
    UserError: malformed spec, no such data set or split, a data set that is
      not prepared, or one in another file format than array_record.
  """
  match = _SPEC.fullmatch(rest)
  if match is None:
    raise UserError(
      f"source {spec!r} needs a data set and a split; write "
      "tfds:NAME:SPLIT or tfds:NAME:SPLIT:FIELD"
    )
  source = _open(spec, match["name"], match["split"])
  fields = (match["fields"] or "text").split(",")
  prefix = f"tfds:{match['name']}:{match['split']}"
  return (
    document_from_record(source[i], fields, f"{prefix}:{i}", replace_invalid)
    for i in range(len(source))
  )


def _open(spec: str, name: str, split: str) -> Any:
  import tensorflow_datasets as tfds

  # TFDS reads the variable once, at import; a caller may set it later.
  data_dir = os.environ.get("TFDS_DATA_DIR")
  where = f"TFDS_DATA_DIR = {data_dir or '~/tensorflow_datasets'}"
  try:
    builder = tfds.builder(name, data_dir=data_dir)
  except (ValueError, ImportError) as error:
    reason = str(error).partition("\n")[0]
    raise UserError(
      f"source {spec!r}: no data set {name!r} under {where} ({reason}); "
      "prepare it there with file_format array_record"
    ) from error
  if not builder.is_prepared():
    raise UserError(
      f"source {spec!r}: {name!r} is not prepared under {where}; "
      "run its download_and_prepare with file_format array_record"
    )
  file_format = builder.info.file_format.value
  if file_format != "array_record":
    raise UserError(
      f"source {spec!r}: {name!r} is stored as {file_format}; prepare "
      "it again with file_format array_record (the others need TensorFlow)"
    )
  try:
    return builder.as_data_source(split=split)
  except ValueError as error:
    raise UserError(
      f"source {spec!r}: no split {split!r}; there are "
      f"{', '.join(builder.info.splits)}"
    ) from error
