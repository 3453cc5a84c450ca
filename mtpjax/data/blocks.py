"""Tokenising a long text in blocks, with the ids the whole text would get.

A block goes from one cut to the next, and is tokenised with some text on either
side of it, of which the ids are dropped:

  block k    ....context|own text of the block|margin
  block k+1                        ....context|own text of the block|margin

A cut holds where both blocks begin a token there, and go on with the same ids.
That is enough for byte-pair encoding, wherever the cut is: merges that never
reach over a border are made on either side as if the other were not there, so
ids are those of the whole text if every two neighbours among them are ids of
what they spell, and these all are neighbours in one of the two blocks. (A text
that a pattern cuts into words beforehand is cut from left to right; it goes on
alike from a border that both blocks have, given that patterns look back and
ahead no further than context and margin.) For other models the cut must also
be a border between words, which they tokenise one by one.

Cuts are looked for where a short stretch of text says that they hold, and then
checked on the blocks themselves. Where a check fails two blocks become one;
where there is no cut to be found the block grows.
"""

import dataclasses
import re
from collections.abc import Iterable, Iterator

import numpy as np

from mtpjax.data.tokenizer import Tokenizer

# Characters of a block, about.
SIZE = 2**18
# Characters of context, and of margin. A multiple of many small numbers:
# digits in threes, or spaces in eights, are then cut alike from both starts.
REACH = 960
# Cuts are looked for among so many characters, so many of a kind.
_SPAN, _TRIES = 4096, 3
# Between two words, and between two lines, is where most tokenizers cut.
_LIKELY = (
  re.compile(r"(?<=[A-Za-z]) (?=[A-Za-z])"),
  re.compile(r"(?<=\S)\n(?=\S)"),
)


@dataclasses.dataclass(frozen=True)
class Cut:
  """Where two blocks meet.

  Attributes:
    before: ids of the context by itself.
    after: ids of the margin that follows it.
  """

  before: list[int]
  after: list[int]


@dataclasses.dataclass(frozen=True)
class Block:
  """A stretch of a text.

  Attributes:
    text: what is tokenised: context, own text and margin.
    start: the cut it begins at; None where the text begins.
    end: the cut it ends at; None where the text ends.
  """

  text: str
  start: Cut | None = None
  end: Cut | None = None

  def joined(self, other: "Block") -> "Block":
    """Returns this block and the next as one."""
    own = self.text[: len(self.text) - REACH]
    return Block(own + other.text[REACH:], self.start, other.end)

  def begins(self, ids_T: np.ndarray) -> bool:
    """Returns whether the cut it begins at holds, given the ids of `text`."""
    if self.start is None:
      return True
    agreed = self.start.after[: -(-len(self.start.after) // 2)]
    there = [*self.start.before, *agreed]
    return ids_T[: len(there)].tolist() == there

  def ends(self, ids_T: np.ndarray) -> bool:
    """Returns whether the cut it ends at holds, given the ids of `text`."""
    if self.end is None:
      return True
    return ids_T[-len(self.end.after) :].tolist() == self.end.after

  def own_ids(self, ids_T: np.ndarray) -> np.ndarray:
    """Returns the ids of its own text, given the ids of `text`."""
    first = 0 if self.start is None else len(self.start.before)
    last = 0 if self.end is None else len(self.end.after)
    return ids_T[first : len(ids_T) - last]


def cut_blocks(
  pieces: Iterable[str], tokenizer: Tokenizer, size: int = SIZE
) -> Iterator[Block]:
  """Cuts a text into blocks.

  Args:
    pieces: the text, in order.
    tokenizer: whose ids are wanted.
    size: characters of a block, about; at least four times `REACH`.

  Yields:
    The blocks, in order; one, for a short text.
  """
  text = ""
  start: Cut | None = None
  wanted = size
  for piece in pieces:
    text += piece
    while len(text) >= wanted + 2 * REACH:
      origin = 0 if start is None else REACH
      found = _find_cut(text, origin, wanted, tokenizer)
      if found is None:
        wanted += size
        continue
      at, cut = found
      yield Block(text[: at + REACH], start, cut)
      text, start, wanted = text[at - REACH :], cut, size
  yield Block(text, start)


def cut_between_words(pieces: Iterable[str]) -> Iterator[str]:
  """Cuts a text where byte-level BPE cuts it into words, too.

  Args:
    pieces: the text, in order.

  Yields:
    Texts of about `SIZE` characters, which join to the whole; longer ones
    where no word ends.
  """
  text = ""
  for piece in pieces:
    text += piece
    while len(text) > SIZE:
      found = _LIKELY[0].search(text, SIZE)
      if found is None:
        break
      yield text[: found.start()]
      text = text[found.start() :]
  if text:
    yield text


def join_blocks(
  blocks: Iterable[tuple[Block, np.ndarray]], tokenizer: Tokenizer
) -> Iterator[np.ndarray]:
  """Makes the ids of a text from those of its blocks.

  Args:
    blocks: the blocks of one text in order, each with the ids of its `text`.
    tokenizer: tokenises anew what has to be joined.

  Yields:
    Ids, one array after the other, which together are those of the text.
  """
  pending: Block | None = None
  pending_T: np.ndarray | None = None  # None while it is only growing
  due = 0
  for block, ids_T in blocks:
    if pending is None:
      pending, pending_T = block, ids_T
    elif (
      pending_T is not None and pending.ends(pending_T) and block.begins(ids_T)
    ):
      yield pending.own_ids(pending_T)
      pending, pending_T = block, ids_T
    else:
      if pending_T is not None:
        # Twice as long each time, so that the whole costs little more than
        # tokenising it at once.
        due = 2 * len(pending.text)
      pending = pending.joined(block)
      pending_T = None
      if len(pending.text) >= due:
        [pending_T] = tokenizer.encode_batch([pending.text])
  if pending is not None:
    if pending_T is None:
      [pending_T] = tokenizer.encode_batch([pending.text])
    yield pending.own_ids(pending_T)


def _find_cut(
  text: str, origin: int, wanted: int, tokenizer: Tokenizer
) -> tuple[int, Cut] | None:
  """Finds the last place for a cut that is not past the wanted one.

  Args:
    text: has `REACH` characters, and as many again, after the wanted place.
    origin: where the block's own text begins.
    wanted: characters of own text.
    tokenizer: whose ids are wanted.

  Returns:
    Where, and the cut; None if none of the places tried will do.
  """
  last = origin + wanted
  first = max(last - _SPAN, origin + 2 * REACH)
  places: list[int] = []
  for pattern in _LIKELY:
    found = [m.start() for m in pattern.finditer(text, first, last)]
    places += found[: -_TRIES - 1 : -1]
  last -= wanted % REACH
  places += range(last, last - _TRIES * REACH, -REACH)
  for at in places:
    after = text[at : at + REACH]
    near = tokenizer.split_ids(text[at - REACH : at], after)
    far = tokenizer.split_ids(text[at - 2 * REACH : at], after)
    if near and far and near[1] == far[1] and near[0] and near[1]:
      return at, Cut(*near)
  return None
