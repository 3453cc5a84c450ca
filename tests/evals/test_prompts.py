"""Requests made of rows and of prompts: which ones, and what is refused."""

import pathlib

import numpy as np
import pytest

from mtpjax.errors import UserError
from mtpjax.evals import PROMPT_CLASSES, class_requests, held_out_requests


class FakeRows:
  """Row i is filled with i; in every third a second document begins early."""

  path = pathlib.Path("fake")
  row_length = 8

  def __init__(self, n):
    self.n = n

  def __len__(self):
    return self.n

  def __getitem__(self, i):
    segments = np.ones(self.row_length, np.int32)
    if i % 3 == 0:
      segments[2:] = 2
    tokens = np.full(self.row_length, i, np.int32)
    return {"tokens": tokens, "segments": segments}


def picked(rows, n, prompt_length=4, **options):
  requests = held_out_requests(
    rows, n, prompt_length, 5, frozenset(), **options
  )
  assert all(len(set(r.ids)) == 1 for r in requests)
  assert {len(r.ids) for r in requests} == {prompt_length}
  return [r.ids[0] for r in requests]


@pytest.mark.parametrize("n_rows", [100, 7919, 2 * 7919])
def test_rows_are_spread_over_the_split_whatever_its_size(n_rows):
  rows = picked(FakeRows(n_rows), 40)
  assert len(set(rows)) == 40
  quarters = np.histogram(rows, 4, (0, n_rows))[0]
  assert quarters.min() >= 3, quarters


def test_the_same_rows_come_again_and_more_extend_them():
  rows = FakeRows(500)
  assert picked(rows, 9) == picked(rows, 9, seed=3) == picked(rows, 20)[:9]


def test_rows_whose_first_document_is_shorter_are_passed_over():
  assert sorted(picked(FakeRows(9), 6)) == [1, 2, 4, 5, 7, 8]
  assert sorted(picked(FakeRows(9), 9, prompt_length=2)) == list(range(9))


def test_requests_differ_in_their_noise():
  requests = held_out_requests(
    FakeRows(20), 3, 4, 5, frozenset({9}), 0.5, seed=7
  )
  assert [(r.seed, r.index) for r in requests] == [(7, 0), (7, 1), (7, 2)]
  assert {(r.max_new_tokens, r.temperature) for r in requests} == {(5, 0.5)}
  assert {r.kind for r in requests} == {"held-out"}
  assert {r.missing_ids for r in requests} == {frozenset({9})}


def test_requests_of_classes_come_class_by_class():
  prompts = {"b": [[1, 2], [3]], "a": [(4,)]}
  requests = class_requests(prompts, 6, frozenset({9}), 0.5, seed=2)
  assert [(r.kind, r.ids, r.index) for r in requests] == [
    ("b", (1, 2), 0), ("b", (3,), 1), ("a", (4,), 0),
  ]  # fmt: skip
  assert {(r.max_new_tokens, r.temperature, r.seed) for r in requests} == {
    (6, 0.5, 2)
  }
  assert {r.missing_ids for r in requests} == {frozenset({9})}


def test_each_class_has_a_handful_of_short_texts_of_its_own():
  assert list(PROMPT_CLASSES) == ["code", "prose", "structured", "chat"]
  classes = {
    # A conversation is one question here.
    kind: [p if isinstance(p, str) else p[0]["content"] for p in own]
    for kind, own in PROMPT_CLASSES.items()
  }
  texts = [text for own in classes.values() for text in own]
  assert len(set(texts)) == len(texts)
  for own in classes.values():
    assert len(own) >= 4 and all(40 < len(text) < 300 for text in own)


@pytest.mark.parametrize(
  "n, prompt_length, words",
  [(7, 4, "only 6 rows of fake"), (1, 9, "9 is more than the 8 tokens")],
)
def test_what_the_rows_cannot_give_is_one_line(n, prompt_length, words):
  with pytest.raises(UserError, match=words) as error:
    held_out_requests(FakeRows(9), n, prompt_length, 5, frozenset())
  assert "\n" not in str(error.value)
