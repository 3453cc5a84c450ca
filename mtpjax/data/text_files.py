"""Files of text: found, opened, recognised as text, read in pieces."""

import bz2
import codecs
import contextlib
import dataclasses
import glob
import gzip
import io
import lzma
import os
import pathlib
import stat
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from mtpjax.data.document import InvalidText
from mtpjax.errors import UserError

# Files up to this are read at once; longer ones in pieces of `_PIECE` bytes.
SHORT = 2**22
_PIECE = 2**20
# Enough to tell text from anything else.
_HEAD = 4096

Count = Callable[[int], None]

_OPENERS: dict[bytes, Callable[[Any], Any]] = {
  b"\x1f\x8b": gzip.open,
  b"BZh": bz2.open,
  b"\xfd7zXZ\x00": lzma.open,
}
# UTF-32 first: its mark begins with that of UTF-16.
_MARKS = {
  codecs.BOM_UTF32_LE: "UTF-32",
  codecs.BOM_UTF32_BE: "UTF-32",
  codecs.BOM_UTF16_LE: "UTF-16",
  codecs.BOM_UTF16_BE: "UTF-16",
}
_OTHERS = {
  b"\x28\xb5\x2f\xfd": "a zstd file; unpack it first (zstd -d)",
  b"\x04\x22\x4d\x18": "an lz4 file; unpack it first (lz4 -d)",
  b"\x1f\x9d": "a file of compress; unpack it first (uncompress)",
  b"PK\x03\x04": "a zip archive; unpack it first (unzip)",
  b"7z\xbc\xaf\x27\x1c": "a 7z archive; unpack it first",
  b"PAR1": "a Parquet file; write its texts as JSON Lines first",
  b"ARROW1": "an Arrow file; write its texts as JSON Lines first",
  b"SQLite format 3\x00": "a database; write its texts as JSON Lines first",
  b"%PDF-": "a PDF; extract its text first (pdftotext)",
  b"\x7fELF": "a program, not text; leave it out of the source",
  b"\x89PNG": "a picture, not text; leave it out of the source",
  b"\xff\xd8\xff": "a picture, not text; leave it out of the source",
  b"GIF8": "a picture, not text; leave it out of the source",
}


def ignore(n_bytes: int) -> None:
  """Counts nothing."""
  del n_bytes


@dataclasses.dataclass(frozen=True)
class FileText:
  """The text of a file that is not held in memory.

  Attributes:
    file: its path.
    replace_invalid: as in `decode_utf8`.
  """

  file: str
  replace_invalid: bool = False

  def pieces(self, count: Count = ignore) -> Iterator[str]:
    """Reads the file once.

    Args:
      count: called with the bytes read from the disk, as they are.

    Yields:
      The text in order, a megabyte or so at a time.

    Raises:
      UserError: the file cannot be read, or is no text; `InvalidText` where
        it is not UTF-8.
    """
    errors = "replace" if self.replace_invalid else "strict"
    decoder = codecs.getincrementaldecoder("utf-8")(errors)
    done = 0  # bytes given to the decoder before, a byte-order mark included
    with open_text(self.file, count) as file:
      while raw := file.read(_PIECE):
        yield self._decode(decoder, raw, done, False)
        done += len(raw)
      if tail := self._decode(decoder, b"", done, True):
        yield tail

  def _decode(self, decoder: Any, raw: bytes, done: int, is_last: bool) -> str:
    held = len(decoder.getstate()[0])  # of a character half read
    try:
      text = decoder.decode(raw, is_last)
    except UnicodeDecodeError as error:
      raise _invalid(
        self.file, done - held + error.start, error.object[error.start]
      ) from error
    return text if done else text.removeprefix("\ufeff")


def read_text(
  file: str, replace_invalid: bool = False, count: Count = ignore
) -> str | FileText:
  """Reads a file of text, compressed (gzip, bzip2, xz) or not.

  Args:
    file: its path.
    replace_invalid: as in `decode_utf8`.
    count: called with the bytes read from the disk.

  Returns:
    The text without a byte-order mark; of a long file what reads it.

  Raises:
    UserError: see `FileText.pieces`.
  """
  seen: list[int] = []
  with open_text(file, seen.append) as opened:
    raw = opened.read(SHORT + 1)
  if len(raw) > SHORT:
    return FileText(file, replace_invalid)
  count(sum(seen))
  errors = "replace" if replace_invalid else "strict"
  try:
    return raw.decode("utf-8", errors).removeprefix("\ufeff")
  except UnicodeDecodeError as error:
    raise _invalid(file, error.start, raw[error.start]) from error


@contextlib.contextmanager
def open_text(file: str, count: Count = ignore) -> Iterator[BinaryIO]:
  """Opens a file of text, to read its bytes; a context manager.

  Args:
    file: its path; what gzip, bzip2 or xz wrote is decompressed.
    count: called with the bytes read from the disk, as they are.

  Yields:
    The open file.

  Raises:
    UserError: it cannot be read, is damaged, in another coding, or no text.
  """
  try:
    with open(file, "rb") as raw, _opener(raw)(raw) as opened:
      _require_text(file, opened.read(_HEAD))
    with (
      io.BufferedReader(_Counted(file, count)) as counted,
      _opener(counted)(counted) as opened,
    ):
      yield opened
  except (EOFError, zlib.error, lzma.LZMAError) as error:
    raise _damaged(file, error) from error
  except OSError as error:
    # Those of the system have a number, those of gzip and bz2 have none.
    if error.errno is None:
      raise _damaged(file, error) from error
    raise _unreadable(file, error) from error


class _Counted(io.FileIO):
  """A file that says how much of it is read."""

  def __init__(self, file: str, count: Count):
    super().__init__(file)
    self._count = count

  def readinto(self, buffer: Any) -> int | None:
    n = super().readinto(buffer)
    self._count(n or 0)
    return n


def _opener(raw: Any) -> Callable[[Any], Any]:
  head = raw.peek(_HEAD)
  return next(
    (opener for magic, opener in _OPENERS.items() if head.startswith(magic)),
    contextlib.nullcontext,
  )


def matching_files(pattern: str, spec: str) -> list[str]:
  """Returns the files a path or glob names, sorted.

  What exists is meant literally, even if it has a `[` in it: the whole path,
  or the folders it begins with.

  Args:
    pattern: the path or glob; `~` is the home folder.
    spec: the source, for errors.

  Raises:
    UserError: there is none, or one that is named or matched can't be read as
      a file: a folder (if named), a broken link, a pipe.
  """
  pattern = os.path.expanduser(pattern)
  if os.path.lexists(pattern):
    names = [pattern]
    if os.path.isdir(pattern):
      raise UserError(
        f"source {spec!r} names a folder; write {os.path.join(pattern, '*')} "
        f"for its files, or {os.path.join(pattern, '**/*.txt')} for those of "
        "its subfolders, too"
      )
  else:
    names = glob.glob(_literal_start(pattern), recursive=True)
  files = sorted(name for name in names if not os.path.isdir(name))
  for file in files:
    _require_file(file, spec)
  if not files:
    raise UserError(
      f"source {spec!r} matches no file (in {os.getcwd()}); correct "
      "the path, or quote the glob so that the shell leaves it alone"
    )
  return files


def name_of(file: str, pattern: str) -> str:
  """Returns a file's name below the folder its pattern begins with.

  Names decide what is held out, and must not depend on where the text lies.
  """
  folder = pathlib.Path(pattern).expanduser().parent
  while glob.has_magic(str(folder)) and not folder.is_dir():
    folder = folder.parent
  return pathlib.Path(file).relative_to(folder).as_posix()


def _literal_start(pattern: str) -> str:
  """Escapes the folders that exist as they are written."""
  parts = pathlib.PurePath(pattern).parts
  for n in range(len(parts) - 1, 0, -1):
    folder = os.path.join(*parts[:n])
    if glob.has_magic(folder) and os.path.isdir(folder):
      return os.path.join(glob.escape(folder), *parts[n:])
  return pattern


def _require_file(file: str, spec: str) -> None:
  try:
    mode = os.stat(file).st_mode
  except OSError as error:
    if os.path.islink(file):
      raise UserError(
        f"source {spec!r}: {file} is a broken link (to {os.readlink(file)}); "
        "mend or delete it"
      ) from error
    raise _unreadable(file, error) from error
  if not stat.S_ISREG(mode):
    kind = "a pipe" if stat.S_ISFIFO(mode) else "a device or socket"
    raise UserError(
      f"source {spec!r}: {file} is {kind}, not a file, and sources are read "
      "more than once; write what comes from it to a file"
    )


def _require_text(file: str, head: bytes) -> None:
  """Raises UserError if a file begins as no UTF-8 text does."""
  for magic, what in _OTHERS.items():
    if head.startswith(magic):
      raise UserError(f"{file}: is {what}")
  coding = next(
    (name for mark, name in _MARKS.items() if head.startswith(mark)), None
  )
  if coding is None and _is_every_other_byte_zero(head):
    coding = "UTF-16"
  if coding:
    raise UserError(
      f"{file}: is {coding}, not UTF-8; convert it first, as with iconv -f "
      f"{coding} -t UTF-8"
    )
  if head[257:262] == b"ustar":
    raise UserError(f"{file}: is a tar archive; unpack it first (tar -x)")


def _is_every_other_byte_zero(head: bytes) -> bool:
  """Is it UTF-16 without a mark (most of it Latin)?"""
  for parity in (0, 1):
    zeros, others = head[parity::2], head[1 - parity :: 2]
    n = zeros.count(0)
    if len(head) >= 4 and n > 0.7 * len(zeros) and others.count(0) < n / 10:
      return True
  return False


def _invalid(file: str, at: int, byte: int) -> UserError:
  """The error of a file with a byte that is not UTF-8."""
  where = f"{file}: not UTF-8 at byte {at} (0x{byte:02x})"
  with open_text(file) as opened:
    is_binary = b"\x00" in opened.read(_HEAD)
  if is_binary:
    return UserError(
      f"{where}: is a binary file, not text; leave it out of the source"
    )
  return InvalidText(where)


def _unreadable(file: str, error: OSError) -> UserError:
  way_out = (
    "give yourself the right to read it, or leave it out of the source"
    if isinstance(error, PermissionError)
    else "correct the source"
  )
  return UserError(f"{file}: cannot be read ({error.strerror}); {way_out}")


def _damaged(file: str, error: Exception) -> UserError:
  return UserError(f"{file}: compressed and damaged ({error}); copy it anew")
