"""What is shown while sources are read: how many megabytes of them are."""

from collections.abc import Sequence

import rich.console

from mtpjax.data import size_of
from mtpjax.progress import Progress

_MEGABYTE = 1_000_000


class Reading(Progress):
  """Progress in megabytes of sources, where their sizes are known."""

  def __init__(
    self, console: rich.console.Console, text: str, sources: Sequence[str]
  ):
    """Says what is about to be read.

    Args:
      console: where it is shown.
      text: what is happening.
      sources: as in `--data.sources`.

    Raises:
      UserError: a source is malformed or names nothing.
    """
    sizes = [size_of(spec) for spec in sources]
    known = [size for size in sizes if size is not None]
    total = -(-sum(known) // _MEGABYTE) if len(known) == len(sizes) else None
    super().__init__(console, text, total)
    self._most = total
    self._n_bytes = 0

  def count(self, n_bytes: int) -> None:
    """Notes that so many more bytes have been read."""
    self._n_bytes += n_bytes
    if self._most is not None:
      self.update(min(self._n_bytes // _MEGABYTE, self._most))
