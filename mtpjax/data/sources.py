"""Sources: what an entry of `data.sources` names, document by document."""

import codecs
import dataclasses
import importlib.util
import io
import json
import os
import pathlib
import sysconfig
import tokenize
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from mtpjax.config import nearest
from mtpjax.data.document import Document, decode_utf8, document_from_record
from mtpjax.data.text_files import (
  Count,
  ignore,
  matching_files,
  name_of,
  open_text,
  read_text,
)
from mtpjax.data.tfds_source import read_tfds
from mtpjax.errors import UserError

# Not part of the library proper: installed packages and its own tests.
SKIPPED_FOLDERS = {
  "site-packages",
  "dist-packages",
  "test",
  "tests",
  "idle_test",
  "__pycache__",
}


def read_documents(
  spec: str, replace_invalid_utf8: bool = False, count: Count = ignore
) -> Iterator[Document]:
  """Reads a source, always in the same order.

  Args:
    spec: one of
      `python-stdlib`: the `.py` files of the running Python's library; those
        that are not UTF-8 come as documents without parts.
      `python-package:NAME`: those of an installed package.
      `text:GLOB`: one document per file; `**` goes into subfolders. What
        gzip, bzip2 and xz wrote is decompressed, also for `jsonl`.
      `jsonl:PATH:FIELD`: one document per line; PATH may be a glob. FIELD
        is a text, or a conversation: a list of {"role", "content"}, of which
        the assistant's turns are trained.
      `jsonl:PATH:PROMPT,COMPLETION`: only the completion is trained.
      `tfds:NAME:SPLIT[:FIELD]`: an array_record data set of TensorFlow
        Datasets (field `text`), found under TFDS_DATA_DIR.
    replace_invalid_utf8: read bytes that are not UTF-8 as U+FFFD.
    count: called with the bytes that have been read; not with those of a
      `LongText`, which is read later.

  Returns:
    An iterator over the documents; names are unique within the source.

  Raises:
    UserError: the spec is malformed or names nothing (raised here), or a
      document cannot be read (raised by the iterator).
  """
  source, rest = _source(spec)
  return source.read(rest, spec, replace_invalid_utf8, count)


def _pattern_and_fields(rest: str, spec: str) -> tuple[str, tuple[str, ...]]:
  pattern, _, names = rest.rpartition(":")
  fields = tuple(name.strip() for name in names.split(","))
  if not pattern or not all(fields) or len(fields) > 2:
    raise UserError(
      f"source {spec!r} needs a path and one or two fields; write "
      "jsonl:PATH:FIELD or jsonl:PATH:PROMPT,COMPLETION"
    )
  return pattern, fields


def size_of(spec: str) -> int | None:
  """Returns the bytes of a source's files; None where they are not known.

  Args:
    spec: as for `read_documents`.

  Raises:
    UserError: it is malformed or names nothing.
  """
  read_documents(spec)  # which says what is wrong with it
  source, rest = _source(spec)
  if source.files is None:
    return None
  return sum(os.path.getsize(file) for file in source.files(rest, spec))


def _read_text(
  pattern: str, spec: str, replace: bool, count: Count
) -> Iterator[Document]:
  files = matching_files(pattern, spec)

  def read() -> Iterator[Document]:
    for file in files:
      name, text = name_of(file, pattern), read_text(file, replace, count)
      if isinstance(text, str):
        yield Document(name, ((text, True),))
      else:
        yield Document(name, (), long_text=text)

  return read()


def _read_jsonl(
  rest: str, spec: str, replace: bool, count: Count
) -> Iterator[Document]:
  pattern, fields = _pattern_and_fields(rest, spec)
  files = _jsonl_files(rest, spec)
  return _read_records(files, pattern, fields, replace, count)


def _jsonl_files(rest: str, spec: str) -> Sequence[str]:
  return matching_files(_pattern_and_fields(rest, spec)[0], spec)


def _read_records(
  files: Sequence[str],
  pattern: str,
  fields: Sequence[str],
  replace: bool,
  count: Count,
) -> Iterator[Document]:
  for file in files:
    name = name_of(file, pattern)
    with open_text(file, count) as lines:
      for number, raw in enumerate(lines, start=1):
        if number == 1:
          raw = raw.removeprefix(codecs.BOM_UTF8)
        if not raw.strip():
          continue
        where = f"{file}:{number}"
        record = _parse(decode_utf8(raw, where, replace), where)
        for field in fields:
          if isinstance(record, dict) and isinstance(
            record.get(field), _Digits
          ):
            raise UserError(
              f"{where}: field {field!r}: int instead of a string; name a text "
              "field"
            )
        document = document_from_record(record, fields, where, replace)
        yield dataclasses.replace(document, name=f"{name}:{number}")


def _parse(line: str, where: str) -> Any:
  try:
    return json.loads(line, parse_int=_integer)
  except json.JSONDecodeError as error:
    raise UserError(
      f"{where}: not valid JSON ({error.msg} at column {error.colno}); "
      "jsonl holds one JSON object per line"
    ) from error
  except RecursionError as error:
    raise UserError(
      f"{where}: nested too deeply to be read; leave this record out"
    ) from error


class _Digits(str):
  """A number of more digits than Python reads, as it is written."""


def _integer(digits: str) -> int | _Digits:
  try:
    return int(digits)
  except ValueError:  # more than sys.get_int_max_str_digits()
    return _Digits(digits)


def _package_folder(name: str, spec: str) -> pathlib.Path:
  # Names with a dot would be imported to be found.
  found = importlib.util.find_spec(name) if name.isidentifier() else None
  places = (found and found.submodule_search_locations) or ()
  for place in places:
    return pathlib.Path(place)
  raise UserError(
    f"source {spec!r} names no installed package; give the name that is "
    "imported, as python-package:numpy"
  )


def _python_root(spec: str) -> pathlib.Path:
  if spec == "python-stdlib":
    return pathlib.Path(sysconfig.get_path("stdlib"))
  return _package_folder(spec.partition(":")[2], spec)


def _python_files(root: pathlib.Path) -> Iterator[pathlib.Path]:
  for folder, folders, files in os.walk(root):
    folders[:] = sorted(set(folders) - SKIPPED_FOLDERS)
    for file in sorted(f for f in files if f.endswith(".py")):
      path = pathlib.Path(folder, file)
      # Installed packages hold broken links and what is for root alone.
      if os.access(path, os.R_OK) and path.is_file():
        yield path


def _read_python(
  rest: str, spec: str, replace: bool, count: Count
) -> Iterator[Document]:
  del replace
  return _read_files(_python_root(spec), rest or spec, count)


def _read_files(
  root: pathlib.Path, prefix: str, count: Count
) -> Iterator[Document]:
  for path in _python_files(root):
    name = f"{prefix}/{path.relative_to(root).as_posix()}"
    raw = path.read_bytes()
    count(len(raw))
    text = _utf8_source(raw)
    yield Document(name, () if text is None else ((text, True),))


def _utf8_source(raw: bytes) -> str | None:
  """Returns the text of a Python file, None if it is in another coding."""
  try:
    coding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
    # A byte-order mark is none of the text.
    return raw.decode("utf-8-sig") if coding.startswith("utf-8") else None
  except (SyntaxError, UnicodeDecodeError):
    return None


def _read_tfds(
  rest: str, spec: str, replace: bool, count: Count
) -> Iterator[Document]:
  del count  # sizes of records are not known
  return read_tfds(spec, rest, replace)


def _python_sources(rest: str, spec: str) -> Iterator[pathlib.Path]:
  del rest
  return _python_files(_python_root(spec))


@dataclasses.dataclass(frozen=True)
class Source:
  """A kind of source; one of your own is a file and a line in `SOURCES`.

  Attributes:
    forms: how it is written, `KIND` or `KIND:REST`.
    read: (REST, the whole spec, replace invalid UTF-8, count) -> documents; see
      `read_documents`. Raises UserError for a spec that names nothing.
    files: (REST, the whole spec) -> its files; None where they are not known.
  """

  forms: tuple[str, ...]
  read: Callable[[str, str, bool, Count], Iterator[Document]]
  files: Callable[[str, str], Iterable[str | pathlib.Path]] | None = None


SOURCES: dict[str, Source] = {
  "python-stdlib": Source(("python-stdlib",), _read_python, _python_sources),
  "python-package": Source(
    ("python-package:NAME",), _read_python, _python_sources
  ),
  "text": Source(("text:GLOB",), _read_text, matching_files),
  "jsonl": Source(
    ("jsonl:PATH:FIELD", "jsonl:PATH:PROMPT,COMPLETION"), _read_jsonl,
    _jsonl_files,
  ),
  "tfds": Source(("tfds:NAME:SPLIT[:FIELD]",), _read_tfds),
}  # fmt: skip


def _source(spec: str) -> tuple[Source, str]:
  """Returns the kind of a source, and what comes after it in the spec."""
  kind, _, rest = spec.partition(":")
  *most, last = (form for source in SOURCES.values() for form in source.forms)
  forms = f"{', '.join(most)} or {last}"
  if kind not in SOURCES:
    raise UserError(
      f"source {spec!r} is of no known kind{nearest(kind, tuple(SOURCES))}"
      f"; write {forms}"
    )
  # A kind that takes nothing is written alone, the others are not.
  if (kind in SOURCES[kind].forms) != (spec == kind):
    raise UserError(f"source {spec!r} is incomplete; write {forms}")
  return SOURCES[kind], rest
