"""Text of a growing list of ids, without ever taking anything back."""

from collections.abc import Iterable, Sequence

from mtpjax.data.tokenizer import Tokenizer

# Ids kept as context after their text is out. Decoders look back at most at
# the token before (a leading space is dropped only at the very start).
_CONTEXT = 8
_WINDOW = 64
_REPLACEMENT = "\ufffd"


def decode_after(
  tokenizer: Tokenizer, before: Sequence[int], ids: Sequence[int]
) -> str:
  """Returns the text of ids that go on from a text.

  Some decoders leave out the space that begins a text; one that goes on from
  another keeps it.

  Args:
    tokenizer: any.
    before: from `last_of_text`; without an id, nothing went before.
    ids: whose text is wanted.
  """
  text = tokenizer.decode([*before, *ids])
  return text[len(tokenizer.decode(before)) :] if before else text


def last_of_text(tokenizer: Tokenizer, ids: Sequence[int]) -> tuple[int, ...]:
  """Returns the last id whose text no other changes; none if there is none.

  Args:
    tokenizer: any.
    ids: of a prompt.
  """
  for i in reversed(ids):
    if i in tokenizer.fallback_ids:
      continue
    text = tokenizer.decode([i])
    if text and _REPLACEMENT not in text:
      return (i,)
  return ()


class TextStream:
  """Decodes ids as they come.

  The texts returned by `push` and, at the end, by `flush` concatenate to
  `tokenizer.decode` of all ids, or to `decode_after`. What may still change is
  held back: a character whose bytes have not all come, or a run of
  byte-fallback tokens that has not ended.
  """

  def __init__(self, tokenizer: Tokenizer, before: Sequence[int] = ()):
    """Begins without text.

    Args:
      tokenizer: any.
      before: see `decode_after`.
    """
    self._tokenizer = tokenizer
    self._before = before
    self._begin()

  def _begin(self) -> None:
    self._ids = list(self._before)
    # Characters of the decoded `_ids` that are out.
    self._n_emitted = len(self._tokenizer.decode(self._ids))

  def push(self, ids: Iterable[int]) -> str:
    """Takes ids and returns the text that became complete.

    Args:
      ids: the next ids; special ones are skipped, as in `decode`.

    Returns:
      The new text, often empty after a single id.
    """
    self._ids += (int(i) for i in ids)
    n_settled = len(self._ids)
    while n_settled and self._ids[n_settled - 1] in (
      self._tokenizer.fallback_ids
    ):
      n_settled -= 1
    text = self._tokenizer.decode(self._ids[:n_settled])
    # A character half there decodes to replacement characters at the end.
    new = text.rstrip(_REPLACEMENT)[self._n_emitted :]
    self._n_emitted += len(new)
    if n_settled == len(self._ids) and self._n_emitted == len(text):
      self._forget(text)
    return new

  def flush(self) -> str:
    """Returns the text held back and starts anew."""
    rest = self._tokenizer.decode(self._ids)[self._n_emitted :]
    self._begin()
    return rest

  def _forget(self, text: str) -> None:
    """Drops ids whose text is out, so that a push costs the same for ever."""
    if len(self._ids) <= _WINDOW:
      return
    context = self._ids[-_CONTEXT:]
    context_text = self._tokenizer.decode(context)
    # The cut must not fall inside a character, nor leave no text before it.
    starts_whole = not context_text.startswith(_REPLACEMENT)
    if context_text and starts_whole and text.endswith(context_text):
      self._ids, self._n_emitted = context, len(context_text)
