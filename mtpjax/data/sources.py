"""Sources: what an entry of `data.sources` names, document by document."""

import dataclasses
import glob
import importlib.util
import io
import json
import os
import pathlib
import sysconfig
import tokenize
from collections.abc import Iterator, Sequence

from mtpjax.config import nearest
from mtpjax.data.document import Document, decode_utf8, document_from_record
from mtpjax.data.tfds_source import read_tfds
from mtpjax.errors import UserError

KINDS = ("python-stdlib", "python-package", "text", "jsonl", "tfds")
FORMS = (
  "python-stdlib, python-package:NAME, text:GLOB, jsonl:PATH:FIELD, "
  "jsonl:PATH:PROMPT,COMPLETION or tfds:NAME:SPLIT[:FIELD]"
)
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
  spec: str, replace_invalid_utf8: bool = False
) -> Iterator[Document]:
  """Reads a source, always in the same order.

  Args:
    spec: one of
      `python-stdlib`: the `.py` files of the running Python's library; those
        that are not UTF-8 come as documents without parts.
      `python-package:NAME`: those of an installed package.
      `text:GLOB`: one document per file; `**` goes into subfolders.
      `jsonl:PATH:FIELD`: one document per line; PATH may be a glob. FIELD
        is a text, or a conversation: a list of {"role", "content"}, of which
        the assistant's turns are trained.
      `jsonl:PATH:PROMPT,COMPLETION`: only the completion is trained.
      `tfds:NAME:SPLIT[:FIELD]`: an array_record data set of TensorFlow
        Datasets (field `text`), found under TFDS_DATA_DIR.
    replace_invalid_utf8: read bytes that are not UTF-8 as U+FFFD.

  Returns:
    An iterator over the documents; names are unique within the source.

  Raises:
    UserError: the spec is malformed or names nothing (raised here), or a
      document cannot be read (raised by the iterator).
  """
  kind, _, rest = spec.partition(":")
  if kind not in KINDS:
    raise UserError(
      f"source {spec!r} is of no known kind{nearest(kind, KINDS)}"
      f"; write {FORMS}"
    )
  if (kind == "python-stdlib") != (spec == kind):
    raise UserError(f"source {spec!r} is incomplete; write {FORMS}")
  if kind == "python-stdlib":
    return _read_python(pathlib.Path(sysconfig.get_path("stdlib")), kind)
  if kind == "python-package":
    return _read_python(_package_folder(rest, spec), rest)
  if kind == "text":
    return _read_text(rest, spec, replace_invalid_utf8)
  if kind == "jsonl":
    pattern, _, names = rest.rpartition(":")
    fields = tuple(name.strip() for name in names.split(","))
    if not pattern or not all(fields) or len(fields) > 2:
      raise UserError(
        f"source {spec!r} needs a path and one or two fields; write "
        "jsonl:PATH:FIELD or jsonl:PATH:PROMPT,COMPLETION"
      )
    files = _matching_files(pattern, spec)
    return _read_jsonl(files, pattern, fields, replace_invalid_utf8)
  return read_tfds(spec, rest, replace_invalid_utf8)


def _matching_files(pattern: str, spec: str) -> list[str]:
  pattern = os.path.expanduser(pattern)
  # A path that exists is meant literally, even if it has a `[` in it, and so
  # is what a pattern begins with.
  names = [pattern] if os.path.isfile(pattern) else glob.glob(
    _escape_existing(pattern), recursive=True
  )  # fmt: skip
  files = sorted(name for name in names if os.path.isfile(name))
  if not files:
    raise UserError(
      f"source {spec!r} matches no file (in {os.getcwd()}); correct "
      "the path, or quote the glob so that the shell leaves it alone"
    )
  return files


def _escape_existing(pattern: str) -> str:
  """Returns the pattern with those folders escaped that exist by that name."""
  folder = pathlib.Path(pattern).parent
  while glob.has_magic(str(folder)) and not folder.is_dir():
    folder = folder.parent
  if not glob.has_magic(str(folder)):
    return pattern
  rest = pathlib.Path(pattern).relative_to(folder)
  return os.path.join(glob.escape(str(folder)), rest)


def _name_of(file: str, pattern: str) -> str:
  """Returns a file's name below the folder its pattern begins with.

  Names decide what is held out, and must not depend on where the text lies.
  """
  folder = pathlib.Path(pattern).expanduser().parent
  while glob.has_magic(str(folder)) and not folder.is_dir():
    folder = folder.parent
  return pathlib.Path(file).relative_to(folder).as_posix()


def _read_text(pattern: str, spec: str, replace: bool) -> Iterator[Document]:
  files = _matching_files(pattern, spec)

  def read() -> Iterator[Document]:
    for file in files:
      text = decode_utf8(pathlib.Path(file).read_bytes(), file, replace)
      yield Document(_name_of(file, pattern), ((text, True),))

  return read()


def _read_jsonl(
  files: Sequence[str], pattern: str, fields: Sequence[str], replace: bool
) -> Iterator[Document]:
  for file in files:
    name = _name_of(file, pattern)
    with open(file, "rb") as lines:
      for number, raw in enumerate(lines, start=1):
        if not raw.strip():
          continue
        where = f"{file}:{number}"
        line = decode_utf8(raw, where, replace)
        try:
          record = json.loads(line)
        except json.JSONDecodeError as error:
          raise UserError(
            f"{where}: not valid JSON ({error.msg} at column {error.colno}); "
            "jsonl holds one JSON object per line"
          ) from error
        document = document_from_record(record, fields, where, replace)
        yield dataclasses.replace(document, name=f"{name}:{number}")


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


def _read_python(root: pathlib.Path, prefix: str) -> Iterator[Document]:
  for folder, folders, files in os.walk(root):
    folders[:] = sorted(set(folders) - SKIPPED_FOLDERS)
    for file in sorted(f for f in files if f.endswith(".py")):
      path = pathlib.Path(folder, file)
      name = f"{prefix}/{path.relative_to(root).as_posix()}"
      text = _utf8_source(path.read_bytes())
      yield Document(name, () if text is None else ((text, True),))


def _utf8_source(raw: bytes) -> str | None:
  """Returns the text of a Python file, None if it is in another coding."""
  try:
    coding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
    return raw.decode("utf-8") if coding.startswith("utf-8") else None
  except (SyntaxError, UnicodeDecodeError):
    return None
