"""Another name of a folder, for libraries that misread its own."""

import pathlib
import re
import tempfile

# Orbax globs whole paths and takes the first of these folders for buckets;
# TensorStore reads a backslash as a separator.
_MISREAD = re.compile(r"[*?\[\]\\]|^/(gs|s3|az|hf)(/|$)")


class Alias:
  """A path without special characters that leads to a folder.

  Where the folder's own path has none, that is the alias; otherwise a symbolic
  link in a new temporary folder.
  """

  def __init__(self, folder: pathlib.Path):
    """Names the folder, an absolute path, which need not exist yet."""
    self._folder = folder
    self._made: tempfile.TemporaryDirectory | None = None
    self._path = None if _MISREAD.search(str(folder)) else folder

  @property
  def path(self) -> pathlib.Path:
    """The alias, made when it is first asked for."""
    if self._path is None:
      self._made = tempfile.TemporaryDirectory(prefix="mtpjax-")
      self._path = pathlib.Path(self._made.name, "folder")
      self._path.symlink_to(self._folder, target_is_directory=True)
    return self._path

  def undo(self, text: str) -> str:
    """Returns a message that names the folder instead of its alias."""
    return text.replace(str(self._path), str(self._folder))

  def close(self) -> None:
    """Removes the alias if it is one; it is made anew when asked for."""
    if self._made is not None:
      self._made.cleanup()
      self._made = self._path = None
