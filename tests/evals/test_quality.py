"""Loss and accuracy per offset, and where there are none."""

import jax
import numpy as np
import pytest
from tiny import multi_token_model, pack

from mtpjax import config as config_lib
from mtpjax.evals import make_evaluator
from mtpjax.train import flatten

OFFSETS = (1, 2, 3)
MODEL = multi_token_model(
  heads_config=config_lib.Heads(kind="linear", offsets=OFFSETS, matched=False)
)


class Rows(list):
  """Rows in memory."""

  split = "validation"


def rows_of(*rows, masks=None):
  packed = pack(rows, 8, masks=masks)
  return Rows(
    {name: np.asarray(array[i]) for name, array in packed.items()}
    for i in range(len(rows))
  )


@pytest.fixture(scope="module")
def params():
  return MODEL.init(jax.random.key(0))


def evaluate(params, rows, say=None, on_batch=None):
  loss = config_lib.Loss()
  evaluator = make_evaluator(MODEL, loss, rows, 2, 9, say, on_batch)
  return evaluator, evaluator(params)


def test_an_offset_without_targets_has_no_figures(params):
  lines, done = [], []
  rows = rows_of([[1, 2]], [[3, 4], [5]], [[6, 7]])
  evaluator, values = evaluate(params, rows, lines.append, done.append)
  assert values["targets"].tolist() == [3, 0, 0]
  assert np.isfinite([values["loss"][0], values["accuracy"][0]]).all()
  assert np.isnan([values["loss"][1:], values["accuracy"][1:]]).all()
  flat = flatten(values, OFFSETS)
  assert flat.keys() == {
    "loss/offset_1", "accuracy/offset_1", "targets/offset_1",
    "targets/offset_2", "targets/offset_3",
  }  # fmt: skip
  [line] = lines
  assert "WARNING: no valid target at offset 2, 3 in the validation" in line
  assert done == [1, 2]
  evaluator(params)
  assert len(lines) == 1  # of the same rows it is said once


def test_a_mask_that_leaves_nothing_leaves_no_figures(params):
  lines = []
  rows = rows_of([[1, 2, 3, 4]], masks=[[[False] * 4]])
  _, values = evaluate(params, rows, lines.append)
  assert flatten(values, OFFSETS) == {f"targets/offset_{o}": 0 for o in OFFSETS}
  assert "offset 1, 2, 3" in lines[0]


def test_what_there_is_comes_without_a_warning(params):
  lines = []
  _, values = evaluate(params, rows_of([[1, 2, 3, 4]]), lines.append)
  assert values["targets"].tolist() == [3, 2, 1]
  assert len(flatten(values, OFFSETS)) == 9 and not lines


def test_a_loss_that_went_wrong_is_not_nothing(params):
  broken = jax.tree.map(lambda x: x * np.nan, params)
  lines = []
  _, values = evaluate(broken, rows_of([[1, 2, 3]]), lines.append)
  flat = flatten(values, OFFSETS)
  assert np.isnan(flat["loss/offset_1"]) and np.isnan(flat["loss/offset_2"])
  assert "loss/offset_3" not in flat
