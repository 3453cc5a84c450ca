"""The step: accumulation, norms, clipping, and what it learns."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny

from mtpjax import config as config_lib
from mtpjax.train import (
  create_state,
  loss_and_gradients,
  make_optimizer,
  make_train_step,
)

OFFSETS = (1, 2, 3, 4)
HEADS = config_lib.Heads(offsets=OFFSETS, matched=False)
T, V = 16, 23


@functools.cache
def small_model(dtype="float32"):
  return tiny.multi_token_model(
    None, HEADS, vocab_size=V, d_model=16, d_ff=16, dtype=dtype,
    param_dtype=dtype,
  )  # fmt: skip


def uneven_batch():
  """Eight rows with from 1 to 15 targets at offset 1, one row with none."""
  rng = np.random.default_rng(0)
  lengths = [16, 2, 16, 3, 9, 2, 1, 16]
  rows = [[rng.integers(1, V, n).tolist()] for n in lengths]
  masks = [[[t % 6 != 1 for t in range(n)]] for n in lengths]
  return tiny.pack(rows, T, V, masks)


def test_one_part_of_8_rows_equals_4_parts_of_2(x64):
  model = small_model("float64")
  loss = config_lib.Loss(chunk_tokens=8, weights=(1, 0.5, 2, 0), z_loss=0.01)
  params = tiny.random_params(model.abstract(), 1)
  batch = uneven_batch()
  counts_M = [
    sum(
      int(batch["loss_mask"][b, t + m] and batch["segments"][b, t + m] > 0)
      for b in range(8)
      for t in range(T - m)
    )
    for m in OFFSETS
  ]
  one, four = (
    jax.jit(functools.partial(loss_and_gradients, model, loss, parts))(
      params, batch
    )
    for parts in (1, 4)
  )
  tiny.assert_close(four, one, 1e-12)
  loss_value, sums, grads, tap_norm_M = one
  assert sums.count_M.tolist() == counts_M
  assert np.all(np.asarray(tap_norm_M[:3]) > 0) and tap_norm_M[3] == 0
  assert float(optax.tree.norm(grads)) > 0.1 and float(loss_value) > 1


def periodic_batch():
  """Rows that repeat five tokens, begun at different ones."""
  pattern = [3, 9, 4, 17, 11]
  rows = [[[pattern[(t + b) % 5] for t in range(T)]] for b in range(8)]
  return tiny.pack(rows, T, V)


@functools.cache
def trained(weights, steps=80):
  """Returns metrics of all steps, the first and last state, and the step."""
  model = small_model()
  config = config_lib.Config(
    heads=HEADS,
    loss=config_lib.Loss(chunk_tokens=64, weights=weights),
    optim=config_lib.Optim(
      peak_lr=2e-2, warmup_steps=5, decay_steps=80, clip_norm=1.0
    ),
    train=config_lib.Train(batch_size=8),
  )
  optimizer = make_optimizer(config.optim, model.abstract())
  state = create_state(model, optimizer, jax.random.key(0))
  first = jax.device_get(state)
  places = jax.tree.map(lambda leaf: leaf.sharding, state)
  step = make_train_step(model, optimizer, config)
  batch = jax.tree.map(jnp.asarray, periodic_batch())
  metrics = []
  for _ in range(steps):
    state, m = step(state, batch)
    metrics.append(m)

  def step_from(given, batch):
    return step(jax.device_put(given, places), batch)

  return jax.device_get(metrics), first, jax.device_get(state), step_from


def accuracy_M(metrics):
  return metrics.sums.correct_M / metrics.sums.count_M


def test_every_head_learns_a_periodic_text():
  metrics, _, last, _ = trained((1.0, 1.0, 1.0, 1.0))
  assert accuracy_M(metrics[0]).max() < 0.5
  np.testing.assert_array_equal(accuracy_M(metrics[-1]), np.ones(4))
  assert metrics[-1].loss < 0.1 * metrics[0].loss
  assert int(last.step) == 80
  assert metrics[0].sums.count_M.tolist() == [8 * (T - m) for m in OFFSETS]


def test_a_head_of_weight_0_learns_nothing_while_the_others_do():
  metrics, first, last, _ = trained((1.0, 1.0, 0.0, 1.0))
  np.testing.assert_array_equal(accuracy_M(metrics[-1])[[0, 1, 3]], np.ones(3))
  assert accuracy_M(metrics[-1])[2] < 0.7
  for m in metrics:
    assert m.head_grad_norm_M[2] == 0 and m.tap_grad_norm_M[2] == 0

  # Head 3 only decayed; a head with a weight moved.
  def moved(m):
    pairs = zip(
      jax.tree.leaves(first.params["heads"]),
      jax.tree.leaves(last.params["heads"]), strict=True,
    )  # fmt: skip
    return max(float(np.abs(a[m] - b[m]).max()) for a, b in pairs)

  assert moved(1) < 0.15 < moved(0)


def test_every_head_has_a_gradient_in_the_real_step():
  metrics, *_ = trained((1.0, 1.0, 1.0, 1.0))
  for m in metrics[:20]:
    assert (m.head_grad_norm_M > 0).all() and (m.tap_grad_norm_M > 0).all()
    assert m.is_finite and np.isfinite(m.grad_norm)


def test_norms_and_the_first_update_are_those_of_the_gradients():
  metrics, first, *_ = trained((1.0, 1.0, 1.0, 1.0))
  _, _, grads, tap_norm_M = jax.jit(
    functools.partial(
      loss_and_gradients, small_model(), config_lib.Loss(chunk_tokens=64), 1
    )
  )(first.params, periodic_batch())

  def norm(tree):
    leaves = [np.asarray(x, np.float64).ravel() for x in jax.tree.leaves(tree)]
    return np.linalg.norm(np.concatenate(leaves))

  m = metrics[0]
  np.testing.assert_allclose(m.grad_norm, norm(grads), rtol=1e-5)
  np.testing.assert_allclose(m.tap_grad_norm_M, tap_norm_M, rtol=1e-5)
  own = [jax.tree.map(lambda g: g[-1], grads["lm"]["layers"])]
  own += [jax.tree.map(lambda g, i=i: g[i], grads["heads"]) for i in range(3)]
  np.testing.assert_allclose(
    m.head_grad_norm_M, list(map(norm, own)), rtol=1e-5
  )


def test_a_long_gradient_is_cut_to_the_limit_and_a_short_one_is_not():
  metrics, *_ = trained((1.0, 1.0, 1.0, 1.0))
  norms = np.array([m.grad_norm for m in metrics])
  clipped = np.array([m.clipped_grad_norm for m in metrics])
  assert (norms > 1).any() and (norms < 1).any()
  np.testing.assert_array_equal(clipped, np.minimum(norms, 1))
  # What AdamW gets is what the metrics say: its first moment shows it.
  model = small_model()
  gradients = tiny.random_params(model.abstract(), 3, scale=1.0)
  params = tiny.random_params(model.abstract(), 4)
  clip_norm = 1.0
  optim = config_lib.Optim(clip_norm=clip_norm, b1=0.9)
  optimizer = make_optimizer(optim, model.abstract())
  update = jax.jit(
    lambda g: optimizer.update(g, optimizer.init(params), params)
  )
  for scale in (5.0, 1e-4):
    given = jax.tree.map(lambda g, s=scale: g * np.float32(s), gradients)
    norm = float(optax.tree.norm(given))
    _, opt_state = update(given)
    got = float(optax.tree.norm(opt_state[1][0].mu)) / (1 - 0.9)
    assert got == pytest.approx(min(norm, clip_norm), rel=1e-4)


def test_learning_rates_are_reported_as_used():
  metrics, *_ = trained((1.0, 1.0, 1.0, 1.0))
  rates = [float(m.learning_rate) for m in metrics[:7]]
  np.testing.assert_allclose(rates[:6], 2e-2 * np.arange(6) / 5, rtol=1e-6)
  assert rates[6] < rates[5]


def test_a_step_from_bad_parameters_returns_them_untouched():
  *_, last, step = trained((1.0, 1.0, 1.0, 1.0))
  params = jax.tree.map(np.array, last.params)
  # Finite parameters whose products are not: the loss is inf or nan.
  params["heads"]["layer"]["mlp"]["down"]["kernel"][:] = 3e38
  bad = dataclasses.replace(last, params=params)
  after, metrics = step(bad, jax.tree.map(jnp.asarray, periodic_batch()))
  assert not metrics.is_finite and not np.isfinite(metrics.loss)
  for a, b in zip(jax.tree.leaves(after), jax.tree.leaves(bad), strict=True):
    assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
  assert int(after.step) == 80
