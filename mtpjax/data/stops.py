"""Texts that end a text: found wherever they are, never half shown."""

from collections.abc import Callable, Sequence


def find_first(text: str, stops: Sequence[str], least: int = 0) -> int | None:
  """Returns where the first of the stops begins, None if there is none.

  The first is the one that is complete first as the text grows, but not
  within its first `least` characters.
  """
  found = []
  for stop in stops:
    at = text.find(stop, max(least - len(stop) + 1, 0))
    if at >= 0:
      found.append((at + len(stop), -len(stop)))
  return sum(min(found)) if found else None


def count_ids(
  ids: Sequence[int],
  decode: Callable[[Sequence[int]], str],
  stops: Sequence[str],
  least: int = 0,
) -> int | None:
  """Returns how many ids it takes until their text holds a stop.

  Args:
    ids: of a growing text.
    decode: returns the text of ids.
    stops: texts that end it.
    least: see `find_first`.

  Returns:
    The number, None if the text of all ids holds none.
  """
  if find_first(decode(ids), stops, least) is None:
    return None
  low, high = 0, len(ids)  # the text of `high` ids holds one
  while high - low > 1:
    middle = (low + high) // 2
    if find_first(decode(ids[:middle]), stops, least) is None:
      low = middle
    else:
      high = middle
  return high


def shown(
  text: str, stops: Sequence[str], is_over: bool, least: int = 0
) -> str:
  """Returns what may be shown of a growing text.

  Args:
    text: the text so far.
    stops: texts that end it and are not shown.
    is_over: nothing more will come.
    least: see `find_first`.

  Returns:
    The text up to the first stop; before it is over, without what may turn
    out to be the beginning of one.
  """
  at = find_first(text, stops, least)
  if at is not None:
    return text[:at]
  if is_over:
    return text
  held = 0
  for stop in stops:
    for n in range(min(len(stop) - 1, len(text)), held, -1):
      if text.endswith(stop[:n]):
        held = n
        break
  return text[: len(text) - held]
