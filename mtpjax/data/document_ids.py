"""The ids of a document: its parts one after the other, and its two ends.

A part has the ids that it has after the part before it, as when a model
decodes: first come the ids of the prompt, as `encode` gives them, then the
model goes on.
"""

from collections.abc import Iterable, Iterator, Sequence

from mtpjax.data.document import Document
from mtpjax.data.tokenizer import Tokenizer, require_chat_template

# (ids, are they trained?)
Part = tuple[list[int], bool]
# A text tokenised by itself may begin with a space that is not in it. After
# one of these it begins with none, and few tokens reach over their ends.
_ANCHORS = ("\n", ".", "0", "a", "\x00")


def document_ids(
  document: Document,
  tokenizer: Tokenizer,
  bos_id: int | None,
  eos_id: int | None,
) -> list[Part]:
  """Returns the ids of a document.

  A text gets BOS and EOS, unless it spells them out itself. BOS is trained
  where the first part is, EOS where the last is. A conversation is what the
  tokenizer's chat template makes of it, and gets neither.

  Args:
    document: any.
    tokenizer: gives the ids, and the chat template.
    bos_id: written before a text; None writes none.
    eos_id: written after a text; None writes none.

  Returns:
    The parts in order; none where there is no token, or a conversation in
    which nothing is trained.

  Raises:
    UserError: a conversation, and the tokenizer has no chat template or it
      fails.
  """
  if document.messages:
    template = require_chat_template(tokenizer, document.name)
    texts = template.split(
      document.messages, document.name, document.template_fields
    )
    parts = encode_parts(tokenizer, texts)
    return parts if any(ids and on for ids, on in parts) else []
  parts = encode_parts(tokenizer, document.parts)
  if not any(ids for ids, _ in parts):
    return []
  ids = [i for part, _ in parts for i in part]
  if with_bos(ids, bos_id) != ids:
    assert bos_id is not None
    parts.insert(0, ([bos_id], parts[0][1]))
    ids.insert(0, bos_id)
  # One id that is both has begun the text.
  ends = ids[-1] == eos_id and (len(ids) > 1 or eos_id != bos_id)
  if eos_id is not None and not ends:
    parts.append(([eos_id], parts[-1][1]))
  return parts


def with_bos(ids: Sequence[int], bos_id: int | None) -> list[int]:
  """Returns the ids of a text with BOS in front; never with a second one.

  Args:
    ids: of a text that may spell BOS out itself, as "<s>Hello".
    bos_id: None adds none.
  """
  if bos_id is None or list(ids[:1]) == [bos_id]:
    return list(ids)
  return [bos_id, *ids]


def encode_parts(
  tokenizer: Tokenizer, parts: Iterable[tuple[str, bool]]
) -> list[Part]:
  """Returns the ids of the parts of one text.

  Where a token of the whole text would reach over the end of a part, it is
  cut there: a model that is given the first part alone does not see it either.
  So the first part has the ids of `encode`, and where no token reaches over an
  end, all of them together are `encode` of the whole text.

  Args:
    tokenizer: any.
    parts: (text, is it trained?) in order.

  Returns:
    The same with ids; their text is that of the whole.
  """
  found: list[Part] = []
  before = ""
  for text, is_trained in parts:
    found.append((_encode_after(tokenizer, before, text), is_trained))
    # What is further away than the part before does not count.
    before = text or before
  return found


def _encode_after(tokenizer: Tokenizer, before: str, text: str) -> list[int]:
  """Returns the ids of a text that follows another."""
  if not before or not text:
    return tokenizer.encode(text)
  context = tokenizer.encode(before)
  whole = tokenizer.encode(before + text)
  if whole[: len(context)] == context:
    return whole[len(context) :]
  wanted = tokenizer.decode(whole)
  for ids in _alone(tokenizer, text):
    if tokenizer.decode([*context, *ids]) == wanted:
      return ids
  # The decoder does not give the text back, whatever the ids.
  return tokenizer.encode(text)


def _alone(tokenizer: Tokenizer, text: str) -> Iterator[list[int]]:
  """Yields the ids a text may have by itself, with and without its space."""
  yield tokenizer.encode(text)
  for anchor in _ANCHORS:
    context = tokenizer.encode(anchor)
    ids = tokenizer.encode(anchor + text)
    if ids[: len(context)] == context:
      yield ids[len(context) :]
