"""The schedule's known values, and what decays."""

import jax
import numpy as np
import pytest
import tiny

from mtpjax import config as config_lib
from mtpjax import parallel
from mtpjax.train import make_optimizer, make_schedule
from mtpjax.train.optimizer import decay_mask


def test_warm_up_is_linear_then_a_cosine_falls_to_the_last_rate():
  schedule = make_schedule(
    config_lib.Optim(
      peak_lr=2.0, final_lr_fraction=0.1, warmup_steps=4, decay_steps=24
    )
  )
  known = {0: 0, 1: 0.5, 2: 1.0, 4: 2.0, 14: 1.1, 24: 0.2, 25: 0.2, 1000: 0.2}
  known[9] = 0.2 + 1.8 * (1 + np.cos(np.pi / 4)) / 2
  for step, rate in known.items():
    assert float(schedule(step)) == pytest.approx(rate, abs=1e-6), step
  without_warmup = make_schedule(
    config_lib.Optim(peak_lr=2.0, warmup_steps=0, decay_steps=10)
  )
  assert float(without_warmup(0)) == pytest.approx(2.0)


@pytest.mark.parametrize("kind", ["block", "linear", "medusa"])
def test_matrices_decay_and_vectors_do_not(kind):
  heads = config_lib.Heads(kind=kind, matched=False)
  model = tiny.multi_token_model(None, heads)
  boxes = model.abstract()
  flat, _ = jax.tree_util.tree_flatten_with_path(decay_mask(boxes))
  decays = {jax.tree_util.keystr(path): value for path, value in flat}
  # By name: scales and biases are vectors, stacked or not.
  for name, value in decays.items():
    assert value == (not ("scale" in name or "bias" in name)), name
  assert {True, False} == set(decays.values())
  assert any("scale" in name and "layers" in name for name in decays)
  assert not any(decays[n] for n in decays if "final_norm" in n)
  # By effect: without gradients only the decay moves parameters, and
  # decoupled from Adam it takes rate x decay of them.
  params = tiny.random_params(boxes, 0)
  optimizer = make_optimizer(
    config_lib.Optim(
      peak_lr=0.5, warmup_steps=0, weight_decay=0.25, decay_steps=10
    ),
    boxes,
  )
  zero = jax.tree.map(np.zeros_like, params)
  updates, _ = jax.jit(lambda g, p: optimizer.update(g, optimizer.init(p), p))(
    zero, params
  )
  leaves = zip(
    flat, jax.tree.leaves(updates), jax.tree.leaves(params), strict=True
  )
  for (_, is_decayed), update, value in leaves:
    want = -0.5 * 0.25 * value if is_decayed else np.zeros_like(value)
    np.testing.assert_allclose(update, want, rtol=1e-5)


def test_moments_of_boxed_parameters_have_their_names():
  model = tiny.multi_token_model()
  boxes = model.abstract()
  optimizer = make_optimizer(config_lib.Optim(), boxes)
  state = jax.eval_shape(optimizer.init, boxes)
  adam = state[1][0]

  def names(tree):
    return jax.tree.map(lambda box: box.names, tree, is_leaf=parallel.is_box)

  assert names(adam.mu) == names(adam.nu) == names(boxes)


@pytest.mark.parametrize("apart", [False, True], ids=["together", "apart"])
def test_model_and_heads_each_have_their_rate_their_wait_and_their_clip(apart):
  """Adam written out; a large epsilon, or clipping would not show."""
  settings = config_lib.Optim(
    peak_lr=0.5, warmup_steps=2, decay_steps=20, weight_decay=0.0, eps=1.0,
    clip_norm=1.0, heads_lr_ratio=3.0, heads_only_steps=3, clips_apart=apart,
  )  # fmt: skip
  box = parallel.Logical(np.zeros((2, 2), np.float32), ("embed", "embed_out"))
  optimizer = make_optimizer(settings, {"lm": {"w": box}, "heads": {"w": box}})
  params = {
    name: {"w": np.zeros((2, 2), np.float32)} for name in ("lm", "heads")
  }
  rng = np.random.default_rng(0)
  scales = {"lm": 4.0, "heads": 0.5}
  state = optimizer.init(params)
  moments = {name: [np.zeros((2, 2)), np.zeros((2, 2))] for name in params}
  cosine = {"lm": 17, "heads": 20}  # steps of each schedule, warm-up included
  for step in range(8):
    grads = {
      name: {"w": np.float32(scales[name] * rng.normal(size=(2, 2)))}
      for name in params
    }
    updates, state = optimizer.update(grads, state, params)
    norms = {name: np.linalg.norm(part["w"]) for name, part in grads.items()}
    whole = np.linalg.norm(list(norms.values()))
    for name in params:
      norm = norms[name] if apart else whole
      g = grads[name]["w"] * min(1.0, 1.0 / norm)
      m, v = moments[name]
      m[:] = settings.b1 * m + (1 - settings.b1) * g
      v[:] = settings.b2 * v + (1 - settings.b2) * g**2
      m_hat = m / (1 - settings.b1 ** (step + 1))
      v_hat = v / (1 - settings.b2 ** (step + 1))
      own = step if name == "heads" else step - 3
      peak = 1.5 if name == "heads" else 0.5
      last = settings.final_lr_fraction
      along = np.pi * (own - 2) / (cosine[name] - 2)
      rate = peak * (last + (1 - last) * (1 + np.cos(along)) / 2)
      if own < 2:
        rate = peak * max(own, 0) / 2
      np.testing.assert_allclose(
        updates[name]["w"], -rate * m_hat / (np.sqrt(v_hat) + 1.0),
        rtol=1e-4, atol=1e-7,
      )  # fmt: skip
