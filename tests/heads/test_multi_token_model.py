"""Parameter matching, initial values, and what block heads read."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from mtpjax import config as config_lib
from mtpjax import heads as heads_lib
from mtpjax import parallel
from mtpjax.errors import UserError
from mtpjax.heads import HEADS, HeadContext
from mtpjax.model import KeyValues, Placement, masks


def model_of(offsets=(1, 2, 3, 4), n_layers=6, **heads):
  return tiny.multi_token_model(
    None, config_lib.Heads(offsets=offsets, **heads), n_layers=n_layers
  )


def total(tree):
  return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def test_an_unknown_kind_is_one_line_that_lists_those_there_are():
  with pytest.raises(UserError, match="^heads.kind: 'mlp' is not one") as error:
    model_of(kind="mlp")
  assert all(kind in str(error.value) for kind in HEADS)


@pytest.mark.parametrize("tap", ["before_last", "last"])
def test_block_heads_match_the_baseline_exactly(tap):
  baseline = total(model_of(offsets=(1,)).abstract())
  for offsets in [(1,), (1, 2), (1, 2, 3, 4), (1, 3, 7)]:
    model = model_of(offsets, tap=tap)
    n = len(offsets)
    assert model.matching() == (6 - (n - 1), 0)
    assert total(model.abstract()) == baseline
    counts = heads_lib.count_params(model)
    assert counts["lm"] + counts["heads"] == baseline


@pytest.mark.parametrize("kind", ["linear", "medusa"])
def test_other_heads_report_the_true_difference(kind):
  baseline = total(model_of(offsets=(1,)).abstract())
  layer = total(model_of(offsets=(1,), n_layers=7).abstract()) - baseline
  for n in (2, 4, 9):
    offsets = tuple(range(1, n + 1))
    model = model_of(offsets, kind=kind)
    depth, difference = model.matching()
    assert difference == total(model.abstract()) - baseline
    assert abs(difference) <= layer / 2  # no other depth is nearer
    stacked = jax.tree.leaves(parallel.unbox(model.abstract()["lm"]["layers"]))
    assert {leaf.shape[0] for leaf in stacked} == {depth}
    # One D x D matrix per head, and a bias.
    bias = 32 if kind == "medusa" else 0
    assert total(model.abstract()["heads"]) == (n - 1) * (32 * 32 + bias)
  # Enough heads to be worth a layer: the depth does change.
  assert depth < 6


@pytest.mark.parametrize("kind", ["block", "linear", "medusa"])
def test_unmatched_heads_are_added(kind):
  baseline = total(model_of(offsets=(1,)).abstract())
  model = model_of(kind=kind, matched=False)
  assert model.matching() == (6, total(model.abstract()["heads"]))
  assert total(model.abstract()) == baseline + model.matching()[1]


@pytest.mark.parametrize(
  "n_layers, tap, fits",
  [(5, "before_last", True), (4, "before_last", False), (4, "last", True),
   (3, "last", False)],
)  # fmt: skip
def test_too_few_layers_is_one_line(n_layers, tap, fits):
  model = model_of(n_layers=n_layers, tap=tap)
  if fits:
    assert model.trunk_layers == n_layers - 3
    return
  with pytest.raises(UserError, match="^model.n_layers: ") as error:
    model.abstract()
  assert "\n" not in str(error.value)
  assert "--heads.matched false" in str(error.value)


def test_a_vocabulary_that_is_not_known_is_one_line():
  with pytest.raises(UserError, match="^model.vocab_size: ") as error:
    tiny.multi_token_model(None, None, vocab_size=0)
  assert "\n" not in str(error.value)


def test_initial_values_of_the_trunk_do_not_depend_on_the_heads():
  key = jax.random.key(5)

  def lm(model):
    return jax.jit(
      lambda key: parallel.unbox(model.init_boxed(key))["lm"]
    )(key)  # fmt: skip

  alone = lm(model_of((1,), n_layers=4))
  for model in (
    model_of((1, 2), n_layers=4, matched=False),
    model_of((1, 2, 3, 4), n_layers=4, kind="linear", matched=False),
  ):
    jax.tree.map(np.testing.assert_array_equal, lm(model), alone)


def test_medusa_heads_begin_as_the_identity():
  model = model_of(kind="medusa", tap="last")
  boxed = jax.jit(
    lambda key: parallel.unbox(model.init_boxed(key))["heads"]
  )(jax.random.key(0))  # fmt: skip
  first = jax.tree.map(lambda leaf: leaf[0], boxed)
  tap_BTD = jax.random.normal(jax.random.key(1), (2, 3, 32))
  out_BTD = model.head.apply({"params": first}, tap_BTD, None)
  np.testing.assert_array_equal(out_BTD, tap_BTD)


def block_head():
  model = model_of((1, 2), matched=False)
  params = tiny.random_params(model.abstract(), seed=6)["heads"]
  return model.head, jax.tree.map(lambda leaf: leaf[0], params)


def test_a_block_head_reads_its_document_up_to_itself():
  head, params = block_head()
  segments_BT = np.array([[1, 1, 1, 2, 2, 2, 2, 0]])
  positions_BT = tiny.positions(segments_BT)
  rng = np.random.default_rng(0)
  tap_BTD, direction_D = rng.normal(size=(1, 8, 32)), rng.normal(size=32)

  @jax.jit
  def jacobian(tap_BTD):
    context = HeadContext(
      Placement.packed(jnp.asarray(positions_BT), jnp.asarray(segments_BT))
    )
    return jax.jacrev(
      lambda x: head.apply({"params": params}, x, context) @ direction_D
    )(tap_BTD)

  reads_TT = np.any(np.asarray(jacobian(tap_BTD))[0, :, 0] != 0, axis=-1)
  same_TT = segments_BT[0][:, None] == segments_BT[0]
  np.testing.assert_array_equal(reads_TT, np.tril(same_TT))


def test_a_block_head_with_its_cache_is_the_head_without():
  head, params = block_head()
  tap_BTD = np.random.default_rng(1).normal(size=(2, 5, 32)).astype(np.float32)
  positions_BT = np.tile(np.arange(5), (2, 1))
  whole = HeadContext(
    Placement.packed(positions_BT, jnp.ones((2, 5), jnp.int32))
  )

  @jax.jit
  def both(tap_BTD):
    expected = head.apply({"params": params}, tap_BTD, whole)
    # As decoding does: rows written from the tap, one query at the end.
    rows = head.apply(
      {"params": params}, tap_BTD, positions_BT, method=head.rows
    )
    cache = KeyValues(
      *(
        jnp.pad(x, ((0, 0), (0, 0), (0, 2), (0, 0)), constant_values=9.0)
        for x in (rows.keys_BKSH, rows.values_BKSH)
      )
    )
    last = HeadContext(
      Placement(
        positions_BT[:, 4:],
        masks.Tree(jnp.ones((1, 1), bool), jnp.array([4, 4])),
      ),
      cache,
    )
    return expected, head.apply({"params": params}, tap_BTD[:, 4:], last)

  expected_BTD, last_B1D = both(tap_BTD)
  tiny.assert_close(last_B1D, expected_BTD[:, 4:], 1e-6)
