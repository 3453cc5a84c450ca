"""Numbers in JSON: automata of those within bounds.

Fifteen digits of a fraction are few enough that a reader's double precision
keeps the numbers apart, so that a bound is kept whoever reads them.
"""

import dataclasses
import decimal
from collections.abc import Sequence

from mtpjax.decode.grammar.machine import Dfa, Nfa, literal, simulate, union

_DIGITS = tuple(b"0123456789")
_POINT = ord(".")
_MOST = 15  # digits of a number with a fraction
_MOST_INTEGER = 18  # digits of an integer without a bound
_LARGEST_STEP = 1000  # of multipleOf, in units of its last digit


@dataclasses.dataclass(frozen=True)
class Bounds:
  """What a number keeps to.

  Attributes:
    low: the least; None is without bound.
    high: the largest; None is without bound.
    is_low_open: whether the number must be above the least.
    is_high_open: whether it must be below the largest.
    step: what it is a multiple of; None is nothing.
    is_integer: whether it has no fraction.
  """

  low: decimal.Decimal | None = None
  high: decimal.Decimal | None = None
  is_low_open: bool = False
  is_high_open: bool = False
  step: decimal.Decimal | None = None
  is_integer: bool = False

  @property
  def is_empty(self) -> bool:
    """Whether the bounds exclude each other."""
    if self.low is None or self.high is None:
      return False
    is_open = self.is_low_open or self.is_high_open
    return self.low > self.high or (self.low == self.high and is_open)


def number_dfa(bounds: Bounds) -> Dfa:
  """Returns the texts of numbers.

  Args:
    bounds: what they keep to.

  Raises:
    ValueError: a step that cannot be kept to in binary fractions, or too
      large a one.
  """
  if bounds.is_empty:
    return Dfa((), frozenset())
  if bounds == Bounds(is_integer=bounds.is_integer):
    return _unbounded(bounds.is_integer)
  negative = _mirrored(bounds)
  nfa = Nfa()
  start, end = nfa.node(), nfa.node()
  nfa.link(nfa.embed(nfa.write(start, b"-"), _magnitudes(negative)), end)
  nfa.link(nfa.embed(start, _magnitudes(bounds)), end)
  return nfa.determinise(start, end)


def _mirrored(b: Bounds) -> Bounds:
  """Returns bounds of what may stand after a minus, which is not 0."""
  low, is_low_open = decimal.Decimal(0), True
  if b.high is not None and b.high < 0:
    low, is_low_open = -b.high, b.is_high_open
  return Bounds(
    low, None if b.low is None else -b.low, is_low_open, b.is_low_open, b.step,
    b.is_integer,
  )  # fmt: skip


def _unbounded(is_integer: bool) -> Dfa:
  nfa = Nfa()
  start, end = nfa.node(), nfa.node()
  signed = nfa.write(start, b"-")
  nfa.link(start, signed)
  whole = nfa.write(signed, b"0")
  at = nfa.node()
  nfa.edge(signed, 49, 57, at)
  nfa.link(_digits(nfa, at, _MOST_INTEGER - 1), whole)
  nfa.link(whole, end)
  if is_integer:
    return nfa.determinise(start, end)
  point = nfa.write(whole, b".")
  fraction = nfa.node()
  nfa.edge(point, 48, 57, fraction)
  fraction = _digits(nfa, fraction, _MOST - 1)
  nfa.link(fraction, end)
  exponent = nfa.node()
  for at in (whole, fraction):
    for letter in b"eE":
      nfa.edge(at, letter, letter, exponent)
  sign = nfa.node()
  for letter in b"+-":
    nfa.edge(exponent, letter, letter, sign)
  nfa.link(exponent, sign)
  first = nfa.node()
  nfa.edge(sign, 48, 57, first)
  nfa.link(_digits(nfa, first, 1), end)
  return nfa.determinise(start, end)


def _digits(nfa: Nfa, start: int, most: int) -> int:
  end = nfa.node()
  nfa.link(start, end)
  for _ in range(most):
    at = nfa.node()
    nfa.edge(start, 48, 57, at)
    nfa.link(at, end)
    start = at
  return end


def _magnitudes(b: Bounds) -> Dfa:
  """Returns the texts, without sign and exponent, of what keeps to bounds."""
  if b.is_empty or (b.high is not None and b.high < 0):
    return Dfa((), frozenset())
  low = b.low if b.low is not None and b.low >= 0 else None
  is_low_open = b.is_low_open and low is not None
  places, modulus = _step(b.step)
  parts = []
  largest = b.high if b.high is not None else low
  # One digit more than a bound has, so that there is always something above.
  most = _MOST_INTEGER if b.step is None or b.step < 1 else _MOST
  if largest is not None:
    n_digits = len(str(int(largest)))
    most = max(most, n_digits + 1) if b.high is None else n_digits
  for n in range(1, most + 1):
    # Without a fraction, and with one.
    parts.append(_fixed(b, low, is_low_open, n, 0, 0, places, modulus))
    room = _MOST - n
    if b.is_integer or places == 0 or room < (places or 1):
      continue
    least, longest = (places, places) if places else (1, room)
    parts.append(
      _fixed(b, low, is_low_open, n, least, longest, places, modulus)
    )
  return union(parts) if any(not p.is_empty for p in parts) else parts[0]


def _step(step: decimal.Decimal | None) -> tuple[int | None, int]:
  """Returns decimal places of multiples, and the step in units of the last.

  Readers divide in binary fractions: 0.29 / 0.01 is not an integer to them.
  """
  if step is None:
    return None, 1
  numerator, denominator = step.as_integer_ratio()
  if denominator & (denominator - 1):
    raise ValueError(
      f"{step} is no binary fraction, and validators disagree over its "
      "multiples"
    )
  places = denominator.bit_length() - 1
  modulus = numerator * 5**places
  if modulus > _LARGEST_STEP or places > 4:
    raise ValueError(f"{step} has too many digits")
  return places, modulus


def _fixed(
  b: Bounds, low: decimal.Decimal | None, is_low_open: bool, n: int,
  least: int, longest: int, places: int | None, modulus: int,
) -> Dfa:  # fmt: skip
  """Returns magnitudes of n digits before the point and some after it.

  A state is (digits read, remainder, comparison with low, and with high); a
  comparison is -1, 0 or 1, of the digits so far. After the point it is the
  digits read there, and one more, below 0.
  """
  bounds = [None if x is None else _Aligned(x, n) for x in (low, b.high)]

  def step(state, symbol):
    at, remainder, *compared = state
    if symbol == _POINT:
      return (-1, *state[1:]) if at == n and longest else None
    position = at
    if at < 0:  # after the point
      position = n - at - 1
    if at == n or position >= n + longest:
      return None
    if at == 0 and symbol == 48 and n > 1:
      return None
    digit = symbol - 48
    for side, bound in enumerate(bounds):
      if bound is not None and compared[side] == 0:
        other = bound.digit(position)
        compared[side] = (digit > other) - (digit < other)
    return (
      at + 1 if at >= 0 else at - 1,
      (remainder * 10 + digit) % modulus,
      *compared,
    )

  def is_final(state):
    at, remainder, *compared = state
    position = at if at >= 0 else n - at - 1
    if at >= 0 and (at < n or least):
      return False
    if at < 0 and position < n + least:
      return False
    if places is not None:
      missing = places - (position - n)
      if remainder * 10**missing % modulus:
        return False
    for side, bound in enumerate(bounds):
      if bound is None:
        continue
      order = compared[side] or -bound.has_more(position)
      is_open = (is_low_open, b.is_high_open)[side]
      if order == 0 and is_open or order == (-1, 1)[side]:
        return False
    return True

  start = (0, 0, *(0 if x is None else x.start for x in bounds))
  return simulate(start, step, (*_DIGITS, _POINT), is_final)


class _Aligned:
  """A bound with n digits before the point.

  Attributes:
    start: -1 or 0, how numbers of so many digits compare before any is read.
  """

  def __init__(self, bound: decimal.Decimal, n: int):
    whole, _, fraction = f"{abs(bound):f}".partition(".")
    self.start = -1 if len(whole) > n else 0
    self._digits = whole.rjust(n, "0")[-n:] + fraction.rstrip("0")

  def digit(self, position: int) -> int:
    digits = self._digits
    return int(digits[position]) if position < len(digits) else 0

  def has_more(self, position: int) -> bool:
    return any(digit != "0" for digit in self._digits[position:])


def equal_dfa(values: Sequence[decimal.Decimal]) -> Dfa:
  """Returns the texts, without exponents, of these numbers."""
  parts = [number_dfa(Bounds(v, v)) for v in values]
  zeros = [b"-0"] if 0 in values else []
  return union([*parts, literal(zeros)])
