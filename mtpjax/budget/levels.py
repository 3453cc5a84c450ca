"""What a tree is predicted to do, what passes cost, and which tree won.

Records of calibration; each goes to JSON and back.
"""

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from mtpjax.decode import MODES, tree_files
from mtpjax.decode.tree import Tree
from mtpjax.errors import UserError

HEADS = "tree"  # the mode whose drafter fills any tree from the heads


@dataclasses.dataclass(frozen=True)
class Level:
  """A tree to decode with, and what it is predicted to do.

  Attributes:
    tree: the root alone is plain decoding.
    tokens_per_pass: tokens a row commits per pass, at least 1.
    pass_secs: seconds of a pass.
    mode: whose drafter fills the tree, see `decode.MODES`.
  """

  tree: Tree
  tokens_per_pass: float
  pass_secs: float
  mode: str = HEADS

  @property
  def tokens_per_sec(self) -> float:
    """Tokens per second of one row."""
    return self.tokens_per_pass / self.pass_secs

  def to_dict(self) -> dict[str, Any]:
    """Returns the level, ready for JSON."""
    return _to_dict(self)

  @classmethod
  def from_dict(cls, values: Any) -> "Level":
    """Returns the level of `to_dict`; raises `UserError` if damaged."""
    return cls(**_from_dict(cls, values))


@dataclasses.dataclass(frozen=True)
class Choice:
  """The tree and the drafter that are predicted to be the fastest.

  Attributes:
    tree: the root alone if no tree pays.
    tokens_per_pass: tokens a row commits per pass, at least 1.
    pass_secs: seconds of a pass.
    tokens_per_sec: of one row; times the batch for all of them.
    speed_over_plain: tokens per second over those of plain decoding.
    reason: a sentence for a person.
    mode: whose drafter fills the tree, see `decode.MODES`.
  """

  tree: Tree
  tokens_per_pass: float
  pass_secs: float
  tokens_per_sec: float
  speed_over_plain: float
  reason: str
  mode: str = HEADS

  @property
  def level(self) -> Level:
    """What was chosen, as a level."""
    return Level(self.tree, self.tokens_per_pass, self.pass_secs, self.mode)

  def to_dict(self) -> dict[str, Any]:
    """Returns the choice, ready for JSON."""
    return _to_dict(self)

  @classmethod
  def from_dict(cls, values: Any) -> "Choice":
    """Returns the choice of `to_dict`; raises `UserError` if damaged."""
    return cls(**_from_dict(cls, values))


@dataclasses.dataclass(frozen=True)
class PassCosts:
  """Measured seconds of a pass over so many nodes, with so many heads.

  Noise is smoothed: of several measurements of one size the median counts,
  and isotonic regression sees to it that no pass is taken to be cheaper than
  a smaller one.

  Attributes:
    points: (nodes, secs) as measured, root included, without what drafting
      heads cost; a plain pass, over 1 node, must be there.
    head_secs: what each drafting head adds.
  """

  points: tuple[tuple[int, float], ...]
  head_secs: float = 0.0

  def __post_init__(self):
    for nodes, secs in self.points:
      if nodes < 1 or not (math.isfinite(secs) and secs > 0):
        raise UserError(
          f"calibration: a pass over {nodes} nodes took {secs} seconds; "
          "measure again"
        )
    sizes = sorted({nodes for nodes, _ in self.points})
    if sizes[:1] != [1]:
      raise UserError(
        f"calibration: passes over {sizes} nodes were measured; a plain pass, "
        "over 1 node, is needed too"
      )

  @functools.cached_property
  def _curve(self) -> tuple[list[int], list[float]]:
    """Sizes and their seconds, never decreasing."""
    at_size: dict[int, list[float]] = {}
    for nodes, secs in sorted(self.points):
      at_size.setdefault(nodes, []).append(secs)
    return list(at_size), _isotonic([np.median(s) for s in at_size.values()])

  @property
  def max_nodes(self) -> int:
    """The largest size measured."""
    return max(nodes for nodes, _ in self.points)

  def secs(self, nodes: int, heads: int = 0) -> float:
    """Returns the seconds of a pass over `nodes` nodes that `heads` drafted.

    Linear between the sizes measured. Beyond the largest it grows in
    proportion to the nodes: what nobody measured is not taken to be free.
    """
    sizes, secs = self._curve
    trunk = float(np.interp(nodes, sizes, secs)) * max(nodes / sizes[-1], 1.0)
    return trunk + heads * self.head_secs

  def to_dict(self) -> dict[str, Any]:
    """Returns the costs, ready for JSON."""
    return _to_dict(self)

  @classmethod
  def from_dict(cls, values: Any) -> "PassCosts":
    """Returns the costs of `to_dict`; raises `UserError` if damaged."""
    return cls(**_from_dict(cls, values))


def _isotonic(values: Iterable[float]) -> list[float]:
  """Least squares among the non-decreasing curves, by pooling neighbours."""
  pools: list[tuple[float, int]] = []
  for value in values:
    mean, size = float(value), 1
    while pools and pools[-1][0] > mean:
      below, n = pools.pop()
      mean, size = (below * n + mean * size) / (n + size), n + size
    pools.append((mean, size))
  return [mean for mean, size in pools for _ in range(size)]


_LATER = {"mode"}  # what older files lack


def _to_dict(record: Any) -> dict[str, Any]:
  values = {}
  for field in dataclasses.fields(record):
    value = getattr(record, field.name)
    if isinstance(value, Tree):
      value = tree_files.tree_to_dict(value)
    elif field.name == "points":
      value = [list(point) for point in value]
    values[field.name] = value
  return values


def _from_dict(cls: Any, values: Any) -> dict[str, Any]:
  """Checks and converts the fields of a record."""
  what = cls.__name__
  names = [f.name for f in dataclasses.fields(cls) if f.name not in _LATER]
  if not isinstance(values, Mapping) or set(values) - _LATER != set(names):
    there = sorted(values) if isinstance(values, Mapping) else values
    raise UserError(
      f"calibration: {what} needs {', '.join(names)} and has {there!r:.60}; "
      "calibrate again"
    )
  return {name: _value(f"{what}.{name}", values[name]) for name in values}


def _value(where: str, value: Any) -> Any:
  name = where.split(".")[1]
  if name == "tree":
    try:
      return tree_files.tree_from_dict(value)
    except UserError as error:
      reason = str(error).removeprefix("tree: ")
      raise UserError(f"calibration: {where}: {reason}") from None
  if name == "reason":
    good = isinstance(value, str)
  elif name == "mode":
    good = value in MODES and MODES[value].tree is not None
  elif name == "points":
    good = isinstance(value, (list, tuple)) and all(map(_is_point, value))
    value = tuple(map(tuple, value)) if good else value
  else:
    least = {"tokens_per_pass": 1, "head_secs": 0}.get(name, math.ulp(0.0))
    good = type(value) in (int, float) and least <= value < math.inf
  if not good:
    raise UserError(
      f"calibration: {where} is {value!r:.60}, which cannot be; calibrate again"
    )
  return value


def _is_point(value: Any) -> bool:
  # type(), because to Python true is a number too.
  return (
    isinstance(value, (list, tuple))
    and len(value) == 2
    and type(value[0]) is int
    and type(value[1]) in (int, float)
  )
