"""Which level a batch runs next: speculation that loses is switched off.

The drafts of one class of requests may be right less often than calibration
found, or more often. For each class, and each mode that drafts for it, the
governor keeps which share of the predicted gain has come true: the extra tokens
seen over the extra tokens predicted for the same passes. Then

  tokens per pass of a level = mean over rows of 1 + share (predicted - 1)

Say a chain is predicted to commit 3 tokens per pass, and a pass over it takes
1.5 times as long as a plain one: twice the speed. Ten passes of a row commit 15
tokens, and not 30. Of 20 extra tokens predicted 5 came: with a prior that
counts as much as 20 more, all of which came, the share is 25 / 40. The chain is
then expected to commit 1 + 0.625 x 2 = 2.25 tokens per pass, at 1.5 times the
speed of plain decoding. It goes on; below a share of 0.25 it would not.

The governor sees counts only, no clock and no randomness: the same history
gives the same levels.
"""

from collections.abc import Iterable, Sequence

from mtpjax.budget.levels import Level
from mtpjax.errors import UserError

# What is remembered of a class counts at most as much as this many priors: good
# news of long ago must not hold up the news that drafts are wrong, nor the
# reverse.
MEMORY = 32


class Governor:
  """Chooses among levels, from the tokens that passes committed.

  A change needs a gain of `margin`, so that a batch near the point of equal
  speed does not go to and fro. Everything seen fades by `forgetting` per
  chunk: while plain decoding runs the share returns to 1, and speculation is
  tried again after a time that grows with the bad news there was, up to a
  limit.

  Attributes:
    levels: as from `budget.levels_of`; the first is plain decoding.
    level: index of the level in use; at first the fastest as predicted.
  """

  def __init__(
    self,
    levels: Sequence[Level],
    prior_weight: float = 16.0,
    forgetting: float = 0.95,
    margin: float = 0.05,
  ):
    """Starts with the predictions of calibration.

    Args:
      levels: at least plain decoding, which comes first.
      prior_weight: passes of one row that the predictions count as much as.
      forgetting: share of what was seen that `tick` keeps, below 1.
      margin: gain that a change of level must promise.

    Raises:
      UserError: no levels, plain decoding is not the first, or a setting is
        out of range.
    """
    if not levels or levels[0].tree.size != 1:
      raise UserError("governor: the first level must be plain decoding")
    if not prior_weight > 0 or not 0 <= forgetting < 1 or not margin >= 0:
      raise UserError(
        f"governor: prior_weight {prior_weight} must be above 0, forgetting "
        f"{forgetting} from 0 to below 1, and margin {margin} 0 or more"
      )
    self.levels = tuple(levels)
    self._gains = [level.tokens_per_pass - 1 for level in self.levels]
    self._prior = prior_weight * max(self._gains)
    self._forgetting = forgetting
    # By class and mode: extra tokens seen, and extra tokens predicted.
    self._seen: dict[tuple[str, str], float] = {}
    self._predicted: dict[tuple[str, str], float] = {}
    speeds = self._speeds(())
    self.level = speeds.index(max(speeds))
    # Bad news that has faded must be able to restore a level whose whole gain
    # is less than the margin.
    self._margin = min(margin, (max(speeds) / speeds[0] - 1) / 2)

  def share(self, kind: str, level: int) -> float:
    """Returns extra tokens seen over predicted; 1 if nothing was seen.

    Args:
      kind: class of the requests.
      level: index of a level; those of one mode share what was seen.
    """
    if not self._prior:
      return 1.0
    key = kind, self.levels[level].mode
    seen = self._prior + self._seen.get(key, 0.0)
    return seen / (self._prior + self._predicted.get(key, 0.0))

  def observe(self, kind: str, level: int, tokens: int, passes: int) -> None:
    """Takes note of what rows of one class did in a chunk.

    Args:
      kind: class of the requests.
      level: index of the level they ran at.
      tokens: tokens committed, summed over rows.
      passes: passes, summed over rows.
    """
    if not self._gains[level]:
      return  # plain decoding says nothing about drafts
    key = kind, self.levels[level].mode
    seen = self._seen.get(key, 0.0) + tokens - passes
    predicted = self._predicted.get(key, 0.0) + passes * self._gains[level]
    kept = min(1.0, MEMORY * self._prior / predicted) if predicted else 1.0
    self._seen[key], self._predicted[key] = seen * kept, predicted * kept

  def tick(self) -> None:
    """Forgets a little; to be called once per chunk, at any level."""
    for key in list(self._predicted):
      self._seen[key] *= self._forgetting
      self._predicted[key] *= self._forgetting
      if self._predicted[key] < 1e-6 * self._prior:
        del self._seen[key], self._predicted[key]

  def choose(self, kinds: Iterable[str]) -> int:
    """Decides what the next chunk runs at.

    Args:
      kinds: class of each row that runs.

    Returns:
      Index of the level; the one in use if no row runs.
    """
    kinds = list(kinds)
    if kinds:
      speeds = self._speeds(kinds)
      best = speeds.index(max(speeds))
      if speeds[best] > speeds[self.level] * (1 + self._margin):
        self.level = best
    return self.level

  def _speeds(self, kinds: Sequence[str]) -> list[float]:
    """Tokens per second of each level, for rows of these classes.

    Linear in the share, so a mean will do.
    """
    speeds = []
    for number, (level, gain) in enumerate(
      zip(self.levels, self._gains, strict=True)
    ):
      shares = [self.share(kind, number) for kind in kinds] or [1.0]
      share = sum(shares) / len(shares)
      speeds.append((1 + share * gain) / level.pass_secs)
    return speeds
