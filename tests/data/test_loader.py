"""Batches are a pure function of the step, for any number of processes."""

import collections
import itertools

import numpy as np
import pytest
from corpora import prepared, stacked, write_texts

from mtpjax.data import Loader, evaluation_batches, open_rows
from mtpjax.errors import UserError


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
  config, _ = prepared(tmp_path_factory.mktemp("loader"))
  return open_rows(config.path, "train")


def keys(tokens_BT):
  return [tuple(row_T) for row_T in tokens_BT.tolist()]


def equal(a, b):
  return a.keys() == b.keys() and all((a[n] == b[n]).all() for n in a)


def test_each_epoch_has_every_row_once_in_another_order(rows):
  n = len(rows)
  loader = Loader(rows, global_batch=3, seed=1)
  seen = [
    row for step in range(n) for row in keys(loader.batch(step)["tokens"])
  ]
  epochs = [seen[i * n : (i + 1) * n] for i in range(3)]
  all_rows = collections.Counter(keys(stacked(rows)))
  assert max(all_rows.values()) == 1  # so that orders can be told apart
  for epoch in epochs:
    assert collections.Counter(epoch) == all_rows
  for a, b in itertools.combinations([*epochs, keys(stacked(rows))], 2):
    assert a != b


def test_another_seed_another_order(rows):
  first = Loader(rows, 8, seed=0).batch(0)
  assert equal(first, Loader(rows, 8, seed=0).batch(0))
  assert not equal(first, Loader(rows, 8, seed=1).batch(0))
  # The second epoch of seed 0 is not the first of seed 1, either.
  n = len(rows)
  second_epoch = Loader(rows, n, seed=0).batch(1)
  assert not equal(second_epoch, Loader(rows, n, seed=1).batch(0))


@pytest.mark.parametrize("count", [1, 2, 4])
def test_any_number_of_processes_sees_the_same_global_order(rows, count):
  whole = Loader(rows, 8, seed=3)
  parts = [Loader(rows, 8, 3, i, count) for i in range(count)]
  for step in (0, 1, 7, 1_000_003):
    blocks = [part.batch(step) for part in parts]
    assert blocks[0]["tokens"].shape == (8 // count, 16)
    joined = {n: np.concatenate([b[n] for b in blocks]) for n in blocks[0]}
    assert equal(joined, whole.batch(step))


def test_batches_of_one_row_are_the_rows_of_a_batch(rows):
  whole = Loader(rows, 4, seed=0)
  ones = Loader(rows, 1, seed=0)
  each = Loader(rows, 4, 0, 2, 4)  # one row per process
  for step in range(len(rows)):
    for i in range(4):
      assert equal(
        ones.batch(4 * step + i),
        {n: a[i : i + 1] for n, a in whole.batch(step).items()},
      )
    assert equal(each.batch(step), ones.batch(4 * step + 2))
  with ones.iterate(3) as batches:
    assert equal(next(batches), ones.batch(3))


@pytest.mark.parametrize("start", [0, 1, 37])
def test_iterate_equals_batch_from_any_step(rows, start):
  loader = Loader(rows, 4, 0, 1, 2)
  with loader.iterate(start) as batches:
    for step, batch in zip(range(start, start + 12), batches, strict=False):
      assert equal(batch, loader.batch(step))


def test_resuming_in_the_middle_continues_as_if_never_stopped(rows):
  with Loader(rows, 4, 0).iterate() as batches:
    straight = list(itertools.islice(batches, 10))
  with Loader(rows, 4, 0).iterate() as batches:
    resumed = list(itertools.islice(batches, 4))
  with Loader(rows, 4, 0).iterate(4) as batches:
    resumed += itertools.islice(batches, 6)
  for a, b in zip(straight, resumed, strict=True):
    assert equal(a, b)


def test_batches_hold_the_rows_as_they_are(rows):
  by_tokens = {tuple(row["tokens"].tolist()): row for row in rows}
  batch = Loader(rows, 6, 0).batch(2)
  for i in range(6):
    row = {name: array_BT[i] for name, array_BT in batch.items()}
    assert equal(row, by_tokens[tuple(row["tokens"].tolist())])
  dtypes = {name: array_BT.dtype for name, array_BT in batch.items()}
  assert dtypes.pop("loss_mask") == np.bool_
  assert set(dtypes.values()) == {np.dtype(np.int32)}


def test_fewer_rows_than_a_batch_repeat(tmp_path):
  source = write_texts(tmp_path / "texts", ["only this"])
  config, _ = prepared(tmp_path, sources=(source,))
  rows = open_rows(config.path, "train")
  assert len(rows) == 1
  batch = Loader(rows, 4, 0).batch(0)
  assert keys(batch["tokens"]) == keys(stacked(rows)) * 4


@pytest.mark.parametrize("count", [1, 2, 4])
def test_evaluation_has_each_row_once_in_file_order(rows, count):
  n_batches = -(-len(rows) // 4)
  assert len(rows) % 4  # so that the last batch is padded
  parts = [
    list(evaluation_batches(rows, 4, 10_000, i, count)) for i in range(count)
  ]
  assert {len(part) for part in parts} == {n_batches}
  tokens_NT, segments_NT, mask_NT = (
    np.concatenate([batch[name] for blocks in zip(*parts, strict=True)
                    for batch in blocks])
    for name in ("tokens", "segments", "loss_mask")
  )  # fmt: skip
  assert keys(tokens_NT[: len(rows)]) == keys(stacked(rows))
  assert not segments_NT[len(rows) :].any()
  assert not mask_NT[len(rows) :].any()


def test_evaluation_takes_the_first_batches_at_least_one(rows):
  two = list(evaluation_batches(rows, 4, 2))
  assert (
    keys(np.concatenate([b["tokens"] for b in two]))
    == (keys(stacked(rows))[:8])
  )
  (one,) = evaluation_batches(rows, len(rows) + 5, 3)
  assert (one["segments"].max(axis=1) > 0).sum() == len(rows)


def test_mistakes(rows, tmp_path):
  source = write_texts(tmp_path / "texts", ["only this"])
  config, _ = prepared(tmp_path, sources=(source,))
  none = open_rows(config.path, "validation")
  for run, words in (
    (lambda: Loader(rows, 6, 0, 0, 4), ("train.batch_size: 6", "4 processes")),
    (lambda: Loader(rows, 4, -1), ("train.seed: -1",)),
    (lambda: Loader(none, 4, 0), ("validation", "no rows")),
    (lambda: evaluation_batches(none, 4, 1), ("validation-fraction",)),
    (lambda: evaluation_batches(rows, 6, 1, 0, 4), ("train.batch_size",)),
    (lambda: evaluation_batches(rows, 4, 0), ("train.eval_batches: 0",)),
  ):
    with pytest.raises(UserError) as caught:
      run()
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
      assert word in message, message
