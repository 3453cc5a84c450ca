"""Switching between levels: down, up again, and not to and fro."""

import numpy as np
import pytest

from mtpjax.budget import Level, governor
from mtpjax.decode.tree import Tree
from mtpjax.errors import UserError

PLAIN = Level(Tree.root(), 1.0, 0.010)
SMALL = Level(Tree.chain(1), 1.7, 0.0125)
LARGE = Level(Tree.from_branching((3, 2, 1)), 2.4, 0.016)
LEVELS = (PLAIN, SMALL, LARGE)
ROWS, PASSES = 8, 16


def speed(level, share):
  return (1 + share * (level.tokens_per_pass - 1)) / level.pass_secs


def run(gov, shares, kinds, rng=None):
  """Runs a chunk per entry of `shares`, which maps kinds to the true share.

  Returns:
    The level of each chunk.
  """
  used = []
  for share in shares:
    level = gov.choose(kinds)
    used.append(level)
    for kind in sorted(set(kinds)):
      passes = kinds.count(kind) * PASSES
      gain = gov.levels[level].tokens_per_pass - 1
      extra = share[kind] * gain * passes
      if rng is not None:
        # Passes of one row commit 0 to max_depth extra tokens.
        depth = max(gov.levels[level].tree.max_depth, 1)
        p = min(extra / passes / depth, 1)
        extra = rng.binomial(depth * passes, p) if gain else 0
      gov.observe(kind, level, passes + extra, passes)
    gov.tick()
  return used


def switches(used):
  return int(np.count_nonzero(np.diff(used)))


def test_it_begins_with_the_fastest_as_predicted():
  assert governor.Governor(LEVELS).level == 2
  dear = Level(LARGE.tree, LARGE.tokens_per_pass, 0.030)
  assert governor.Governor((PLAIN, SMALL, dear)).level == 1
  assert governor.Governor((PLAIN, dear)).level == 0
  gov = governor.Governor((PLAIN,))
  assert run(gov, [{"": 0}] * 3, [""]) == [0, 0, 0] and gov.share("", 0) == 1


def test_good_drafts_stay_at_the_top():
  gov = governor.Governor(LEVELS)
  assert set(run(gov, [{"a": 1}] * 100, ["a"] * ROWS)) == {2}
  assert gov.share("a", 2) == pytest.approx(1)
  assert set(run(gov, [{"a": 1.3}] * 100, ["a"] * ROWS)) == {2}
  assert gov.share("a", 2) > 1.25


@pytest.mark.parametrize("rows", [1, 8, 64])
def test_wrong_drafts_are_switched_off_and_tried_again_rarely(rows):
  gov = governor.Governor(LEVELS)
  used = run(gov, [{"a": 0}] * 200, ["a"] * rows)
  assert 0 in used[:8]
  # A row alone shows less per chunk, so there is less to be forgotten.
  assert used.count(0) > (0.75 if rows == 1 else 0.9) * 200
  tried_again = [a for a, b in zip(used[20:], used[19:], strict=False)
                 if a and not b]  # fmt: skip
  assert 1 <= len(tried_again) <= 12


def test_it_comes_back_when_drafts_are_right_again():
  gov = governor.Governor(LEVELS)
  good, bad = [{"a": 1}], [{"a": 0}]
  assert run(gov, good * 100, ["a"] * ROWS)[-1] == 2
  down = run(gov, bad * 100, ["a"] * ROWS)
  assert down.index(0) <= 8  # not held up by the good news of long ago
  # Out of reach of plain decoding, which sees no drafts, until forgotten.
  up = run(gov, good * 200, ["a"] * ROWS)
  first = next(i for i, level in enumerate(up) if level)
  assert first < 80
  settled = up[first + 30 :]
  assert settled and set(settled) == {2}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("around", [0.85, 0.95, 1.0, 1.05, 1.15])
@pytest.mark.parametrize("levels", [LEVELS, (PLAIN, LARGE), (PLAIN, SMALL)])
def test_no_going_to_and_fro_near_the_point_of_equal_speed(
  levels, around, seed
):
  top = levels[-1]
  even = (top.pass_secs / PLAIN.pass_secs - 1) / (top.tokens_per_pass - 1)
  assert speed(top, even) == pytest.approx(speed(PLAIN, even))
  gov = governor.Governor(levels)
  rng = np.random.default_rng(seed)
  used = run(gov, [{"a": even * around}] * 200, ["a"] * ROWS, rng)
  assert switches(used) <= 20
  # Whatever it does costs little.
  done = [speed(levels[level], even * around) for level in used]
  assert np.mean(done) > 0.94 * max(speed(l, even * around) for l in levels)


def test_a_kind_that_loses_does_not_punish_another():
  gov = governor.Governor(LEVELS)
  shares = [{"prose": 0.0, "code": 1.0}]
  assert run(gov, shares * 60, ["prose"] * ROWS)[-1] == 0
  assert gov.share("prose", 2) < 0.6 and gov.share("code", 2) == 1
  assert run(gov, shares * 40, ["code"] * ROWS) == [2] * 40
  # Rows are what is averaged in a mixed batch.
  assert gov.choose(["code"] * 7 + ["prose"]) == 2
  run(gov, shares * 8, ["prose"] * ROWS)
  assert gov.choose(["code"] + ["prose"] * 7) == 0
  assert gov.choose(["prose"] * ROWS) == 0 and gov.choose(["code"]) == 2


def test_a_mode_that_loses_does_not_punish_another():
  merged = Level(LARGE.tree, 2.3, 0.016, "merged")
  gov = governor.Governor((PLAIN, LARGE, merged))
  assert gov.level == 1
  for _ in range(60):
    gov.observe("a", 1, PASSES, PASSES)  # the heads are always wrong
  assert gov.share("a", 1) < 0.1 and gov.share("a", 2) == 1
  assert gov.choose(["a"]) == 2


def test_the_worked_example():
  gov = governor.Governor(
    (PLAIN, Level(Tree.chain(2), 3.0, 0.015)), prior_weight=10
  )
  gov.observe("a", 1, 15, 10)
  assert gov.share("a", 1) == pytest.approx(25 / 40)
  plain, chain = gov._speeds(["a"])
  assert chain / plain == pytest.approx(2.25 / 1.5)


def test_a_small_gain_is_won_back_too():
  """The whole gain is less than the margin."""
  weak = Level(SMALL.tree, 1.29, 0.0125)
  gov = governor.Governor((PLAIN, weak), margin=0.05)
  assert gov.level == 1
  assert run(gov, [{"a": 0}] * 30, ["a"] * ROWS)[-1] == 0
  assert run(gov, [{"a": 1}] * 300, ["a"] * ROWS)[-50:] == [1] * 50


def test_the_same_history_gives_the_same_levels():
  def history():
    gov = governor.Governor(LEVELS)
    rng = np.random.default_rng(5)
    shares = [{"a": rng.uniform(0, 1.2), "b": rng.uniform(0, 0.8)}
              for _ in range(100)]  # fmt: skip
    return run(gov, shares, ["a"] * 3 + ["b"] * 5, rng)

  assert history() == history()


def test_what_was_seen_fades_and_is_dropped():
  gov = governor.Governor(LEVELS, prior_weight=10, forgetting=0.5)
  gov.observe("a", 2, 10, 10)  # nothing was right: 14 extra were predicted
  assert gov.share("a", 2) == pytest.approx(14 / 28)
  gov.tick()
  assert gov.share("a", 2) == pytest.approx(14 / 21)
  for _ in range(60):
    gov.tick()
  assert gov.share("a", 2) == 1 and not gov._seen
  gov.observe("a", 0, 99, 99)
  assert gov.share("a", 2) == 1
  before = gov.level
  assert gov.choose([]) == before


def test_refusals():
  for make in (
    lambda: governor.Governor(()),
    lambda: governor.Governor((SMALL, LARGE)),
    lambda: governor.Governor(LEVELS, prior_weight=0),
    lambda: governor.Governor(LEVELS, forgetting=1.0),
    lambda: governor.Governor(LEVELS, margin=-0.1),
  ):
    with pytest.raises(UserError, match="^governor: .*"):
      make()
