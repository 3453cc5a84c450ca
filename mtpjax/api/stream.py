"""The text of one request as it grows, and where a stop string ends it."""

import functools
from collections.abc import Callable, Sequence

from mtpjax.data import TextStream, Tokenizer, decode_after, stops
from mtpjax.decode import Result


class Stream:
  """Passes text on as it comes, and never what a stop string leaves out."""

  def __init__(
    self,
    tokenizer: Tokenizer,
    stop: Sequence[str],
    on_text: Callable[[int, str], None] | None,
    index: int,
    min_ids: int = 0,
    before: Sequence[int] = (),
  ):
    """Begins with no text.

    Args:
      tokenizer: of the run.
      stop: texts that end the text.
      on_text: called with the index and every new piece; None for none.
      index: of the prompt.
      min_ids: ids before which no stop string ends the text.
      before: of the text it goes on from; see `data.decode_after`.
    """
    self._decode = functools.partial(decode_after, tokenizer, before)
    self._stop = stop
    self._on_text = on_text
    self._index = index
    self._min_ids = min_ids
    self._stream = TextStream(tokenizer, before)
    self._n_ids = 0
    self._text = ""
    self._n_shown = 0

  def find_stop(self, ids: Sequence[int]) -> int | None:
    """Returns how many ids there are up to a stop string; None without."""
    if not self._stop or len(ids) <= self._min_ids:
      return None
    return stops.count_ids(ids, self._decode, self._stop, self._least(ids))

  def text(self, ids: Sequence[int]) -> str:
    """Returns the text of a request that is over."""
    return stops.shown(self._decode(ids), self._stop, True, self._least(ids))

  def push(self, result: Result) -> None:
    """Passes on what the latest result adds."""
    if self._on_text is None:
      return
    is_over = result.finish_reason != "running"
    self._text += self._stream.push(result.ids[self._n_ids :])
    self._n_ids = len(result.ids)
    if is_over:
      self._text += self._stream.flush()
    shown = stops.shown(
      self._text, self._stop, is_over, self._least(result.ids)
    )
    if len(shown) > self._n_shown:
      self._on_text(self._index, shown[self._n_shown :])
      self._n_shown = len(shown)

  def _least(self, ids: Sequence[int]) -> int:
    """Returns how many characters come too early to complete a stop string."""
    # A character half there is complete with a later id.
    return len(self._decode(ids[: self._min_ids]).rstrip("\ufffd"))
