"""Attention in blocks: against float64 loops, and against all scores."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from jax.test_util import check_grads

from mtpjax import config as config_lib
from mtpjax import parallel
from mtpjax.errors import UserError
from mtpjax.model import KeyValues, Placement, masks
from mtpjax.model.attention import blocks, choose, full

B, N, K, H = 2, 4, 2, 6


def arrays(t, dtype=np.float32, n_kv_heads=K, seed=0, scale=1.0):
  rng = np.random.default_rng(seed)
  q_BTNH = scale * rng.normal(size=(B, t, N, H))
  k, v = rng.normal(size=(2, B, n_kv_heads, t, H))
  return jnp.asarray(q_BTNH, dtype), KeyValues(
    jnp.asarray(scale * k, dtype), jnp.asarray(v, dtype)
  )


def packed(t, seed=0):
  """Documents of random lengths, and padding."""
  rng = np.random.default_rng(seed)
  segments_BT = np.sort(rng.integers(1, 5, (B, t)), axis=1)
  segments_BT[:, t - t // 7 :] = 0
  positions_BT = tiny.positions(segments_BT)
  return Placement.packed(jnp.asarray(positions_BT), jnp.asarray(segments_BT))


def by_loops(q_BTNH, new, allowed_BTS, keys=None, values=None):
  """Float64, a query at a time."""
  q, k, v = (
    np.asarray(x, np.float64) for x in (q_BTNH, new.keys_BKSH, new.values_BKSH)
  )
  if keys is not None:
    k = np.concatenate([np.asarray(keys, np.float64), k], axis=2)
    v = np.concatenate([np.asarray(values, np.float64), v], axis=2)
  out = np.zeros(q.shape)
  for b, t, n in np.ndindex(q.shape[:3]):
    group = n // (q.shape[2] // k.shape[1])
    seen = np.flatnonzero(allowed_BTS[b, t])
    scores = k[b, group, seen] @ q[b, t, n] * H**-0.5
    probs = np.exp(scores - scores.max())
    out[b, t, n] = probs @ v[b, group, seen] / probs.sum()
  return out


@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
@pytest.mark.parametrize("t, sizes", [(13, (4, 5)), (16, (8, 4)), (7, (7, 7))])
def test_packed_rows_are_loops_over_what_they_may_read(
  t, sizes, n_kv_heads, window
):
  q_BTNH, new = arrays(t, n_kv_heads=n_kv_heads)
  placement = packed(t)
  got = blocks.attend(q_BTNH, new, placement, window, blocks.Sizes(*sizes))
  allowed = np.asarray(placement.allowed(0, window))[:, 0]
  np.testing.assert_allclose(got, by_loops(q_BTNH, new, allowed), atol=2e-6)


def test_scores_of_1e4_and_bfloat16():
  placement = packed(13)
  allowed = np.asarray(placement.allowed())[:, 0]
  for dtype, scale, atol in (
    (np.float32, 200.0, 1e-4),
    (jnp.bfloat16, 1, 3e-2),
  ):
    q_BTNH, new = arrays(13, dtype, scale=scale)
    got = blocks.attend(q_BTNH, new, placement, 0, blocks.Sizes(4, 4))
    assert got.dtype == dtype
    want = by_loops(q_BTNH, new, allowed)
    np.testing.assert_allclose(np.asarray(got, np.float64), want, atol=atol)


@pytest.mark.parametrize("window", [0, 5])
def test_gradients_are_those_of_all_scores_at_once(window):
  t = 21
  q_BTNH, new = arrays(t)
  placement = packed(t, seed=1)
  weights = np.random.default_rng(5).normal(size=q_BTNH.shape)

  @jax.jit
  def ours(q_BTNH, new):
    out = blocks.attend(q_BTNH, new, placement, window, blocks.Sizes(8, 4))
    return jnp.sum(weights * out)

  @jax.jit
  def theirs(q_BTNH, new):
    allowed = placement.allowed(0, window)
    return jnp.sum(weights * full.attend(q_BTNH, new, allowed, "xla"))

  got = jax.grad(ours, (0, 1))(q_BTNH, new)
  tiny.assert_close(got, jax.grad(theirs, (0, 1))(q_BTNH, new), 1e-5)


def test_gradients_by_differences(x64):
  q_BTNH, new = arrays(9, np.float64)
  placement = packed(9)
  check_grads(
    lambda q, new: blocks.attend(q, new, placement, 0, blocks.Sizes(4, 2)),
    (q_BTNH, new), order=1, modes=["rev"],
  )  # fmt: skip


def test_a_gradient_of_a_gradient_is_one_line():
  q_BTNH, new = arrays(5)

  def f(q_BTNH):
    placement = Placement.whole(jnp.ones((B, 5), int))
    return jnp.sum(
      blocks.attend(q_BTNH, new, placement, 0, blocks.Sizes(4, 4)) ** 2
    )

  with pytest.raises(UserError, match="once; set it to full"):
    jax.grad(lambda q: jnp.sum(jax.grad(f)(q) ** 2))(q_BTNH)


def test_what_lies_before_a_document_or_a_window_is_not_computed():
  """A block that is left out may hold NaN; one that is masked may not."""
  t, sizes = 24, blocks.Sizes(4, 4)
  q_BTNH, new = arrays(t)
  segments_BT = jnp.asarray([[1] * 12 + [2] * 12] * B)
  positions_BT = jnp.asarray([[*range(12), *range(12)]] * B)
  placement = Placement.packed(positions_BT, segments_BT)
  bad = jax.tree.map(lambda x: x.at[:, :, :8].set(jnp.nan), new)
  out = np.asarray(blocks.attend(q_BTNH, bad, placement, 0, sizes))
  assert np.isfinite(out[:, 12:]).all() and np.isnan(out[:, :8]).all()
  whole = Placement.whole(jnp.ones((B, t), int))
  out = np.asarray(blocks.attend(q_BTNH, bad, whole, 4, sizes))
  assert np.isfinite(out[:, 12:]).all() and np.isnan(out[:, :8]).all()


@pytest.mark.parametrize("remat", ["none", "full"])
def test_eight_devices_and_remat_compute_what_one_device_does(
  remat, monkeypatch
):
  # Several blocks, as of rows of thousands.
  monkeypatch.setattr(choose, "block_sizes", lambda t: blocks.Sizes(8, 6))
  rng = np.random.default_rng(0)
  rows = [[rng.integers(1, 248, n).tolist() for n in (9, 14)] for _ in range(4)]
  batch = tiny.pack(rows, 24)
  probes_M = np.zeros(4, np.float32)
  results = {}
  for name, sizes, changes in (
    ("full", (1, 1, 1), {"attention": "full"}),
    ("one", (1, 1, 1), {"attention": "blocks", "remat": remat}),
    ("eight", (2, 2, 2), {"attention": "blocks", "remat": remat}),
  ):
    mesh = parallel.make_mesh(config_lib.Mesh(*sizes))
    model = tiny.multi_token_model(mesh, **changes)
    params = jax.device_put(
      tiny.random_params(model.abstract(), 1),
      parallel.shardings(model.abstract(), mesh),
    )
    results[name] = jax.jit(
      tiny.value_and_grad(model, config_lib.Loss(chunk_tokens=16))
    )(params, probes_M, parallel.place_batch(batch, mesh), np.ones(4))
  tiny.assert_close(results["one"], results["full"], 1e-5)
  tiny.assert_close(results["eight"], results["one"], 1e-5)


def tree(lengths_B, t=3):
  ancestors_QQ = np.eye(t, dtype=bool)
  ancestors_QQ[:, 0] = True
  depth_Q = np.minimum(np.arange(t), 1)
  return Placement(
    jnp.asarray(lengths_B)[:, None] + depth_Q,
    masks.Tree(jnp.asarray(ancestors_QQ), jnp.asarray(lengths_B)),
  )


@pytest.mark.parametrize("window", [0, 4])
@pytest.mark.parametrize("lengths_B", [(11, 3), (0, 16), (17, 17), (0, 0)])
def test_a_tree_reads_the_cache_that_is_filled(lengths_B, window):
  capacity = 17  # is no multiple of the block
  q_BTNH, new = arrays(3)
  _, cache = arrays(capacity, seed=3)
  placement = tree(lengths_B)
  got = blocks.attend_cached(q_BTNH, new, placement, cache, window, 4)
  allowed = np.asarray(placement.allowed(capacity, window))[:, 0]
  want = by_loops(q_BTNH, new, allowed, cache.keys_BKSH, cache.values_BKSH)
  np.testing.assert_allclose(got, want, atol=2e-6)


def test_blocks_that_nobody_uses_change_no_bit():
  q_BTNH, new = arrays(3)
  _, cache = arrays(32, seed=3)
  run = jax.jit(
    lambda q, new, lengths_B: blocks.attend_cached(
      q, new, tree(lengths_B), cache, 0, 4
    )
  )
  alone = run(q_BTNH, new, jnp.asarray((6, 6)))
  beside = run(q_BTNH, new, jnp.asarray((6, 30)))
  np.testing.assert_array_equal(alone[0], beside[0])
