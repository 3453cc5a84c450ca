"""Which target a position has at each offset, by hand."""

import numpy as np
import pytest

from mtpjax import losses

X = None  # no target


def table(tokens, segments, mask, offsets):
  """Targets as a table of ids, X where they do not count."""
  targets = losses.shift_targets(
    np.array([tokens]), np.array([segments]), np.array([mask], bool), offsets
  )
  assert targets.ids_MBT.shape == (len(offsets), 1, len(tokens))
  rows = [
    [int(i) if v else X for i, v in zip(ids_BT[0], valid_BT[0], strict=True)]
    for ids_BT, valid_BT in zip(targets.ids_MBT, targets.valid_MBT, strict=True)
  ]
  counts = [sum(x is not X for x in row) for row in rows]
  assert targets.counts_M.tolist() == counts
  return rows


@pytest.mark.parametrize(
  "tokens, segments, mask, expected",
  [
    # Two documents and padding: no offset crosses into the next document.
    # (Shifting the segment ids along leaks here from offset 2 on.)
    ([11, 12, 13, 21, 22, 23, 24, 0], [1, 1, 1, 2, 2, 2, 2, 0], [1] * 8,
     {1: [12, 13, X, 22, 23, 24, X, X],
      2: [13, X, X, 23, 24, X, X, X],
      3: [X, X, X, 24, X, X, X, X],
      4: [X] * 8}),
    # The last prompt token learns the first answer token.
    ([1, 2, 3, 4, 5], [1] * 5, [0, 0, 0, 1, 1],
     {1: [X, X, 4, 5, X], 2: [X, 4, 5, X, X], 4: [5, X, X, X, X]}),
    # Holes in the middle; documents of length 1; padding in front.
    ([0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 2, 2, 3, 0], [1, 1, 1, 0, 1, 1, 1],
     {1: [X, X, X, 4, X, X, X], 2: [X, X, 4, X, X, X, X]}),
    # The same segment number again is the same document only while it lasts
    # ... and an offset longer than the row has no target.
    ([5, 6], [1, 1], [1, 1], {1: [6, X], 2: [X, X], 7: [X, X]}),
  ],
)  # fmt: skip
def test_targets_by_hand(tokens, segments, mask, expected):
  assert table(tokens, segments, mask, tuple(expected)) == list(
    expected.values()
  )


def test_coefficients_divide_once_and_never_by_zero():
  counts_M = np.array([8, 0, 2], np.int32)
  np.testing.assert_array_equal(
    losses.offset_coefficients(counts_M, ()), [0.125, 0, 0.5]
  )
  np.testing.assert_array_equal(
    losses.offset_coefficients(counts_M, (1.0, 2.0, 0.5)), [0.125, 0, 0.25]
  )
