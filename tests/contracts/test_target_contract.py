"""Targets, readouts and schedules: every entry, and a toy of each."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from mtpjax import cli
from mtpjax import config as config_lib
from mtpjax.heads import HeadContext
from mtpjax.losses import (
  TARGETS,
  batch_targets,
  model_loss,
  offset_coefficients,
)
from mtpjax.losses.targets import Lesson
from mtpjax.model import Placement, unembed
from mtpjax.train.step import loss_and_gradients

EPSILON = 0.2
OFFSETS = (1, 2, 3)


@dataclasses.dataclass(frozen=True)
class Smoothed:
  """A toy: labels, smoothed towards all tokens alike."""

  needs_base: ClassVar[bool] = False

  def of(self, labels, source):
    del source
    return labels

  def lesson(self, ids_X, states, logits, vocab_size, dtype):
    del states, logits
    one_hot_XV = jax.nn.one_hot(ids_X, vocab_size, dtype=dtype)
    probs_XV = (1 - EPSILON) * one_hot_XV + EPSILON / vocab_size
    return Lesson(probs_XV, ids_X)


@dataclasses.dataclass(frozen=True)
class TopTwo:
  """A toy: how often the target is among the two likeliest."""

  name: str = "top_two"

  def read(self, seen):
    _, best_X2 = jax.lax.top_k(seen.logits_XV, 2)
    is_in_X = jnp.any(best_X2 == seen.lesson.best_X[..., None], axis=-1)
    return seen.total(is_in_X)


@dataclasses.dataclass(frozen=True)
class Growing:
  """A toy: the second extra head joins at step 1, at half the weight."""

  def weights(self, step):
    del step
    return jnp.array([1.0, 1.0, 0.5])

  def n_active(self, step):
    return jnp.where(step < 1, 2, 3)


@pytest.fixture(autouse=True)
def toy(monkeypatch):
  monkeypatch.setitem(TARGETS, "smoothed", Smoothed())


def a_model():
  heads = config_lib.Heads(offsets=OFFSETS, tap="last", matched=False)
  return tiny.multi_token_model(None, heads)


def a_batch():
  rng = np.random.default_rng(0)
  segments_BT = np.array([[1] * 7 + [2] * 5, [1] * 12])
  return {
    "tokens": jnp.asarray(rng.integers(0, 19, (2, 12))),
    "segments": jnp.asarray(segments_BT),
    "positions": jnp.asarray(tiny.positions(segments_BT)),
    "loss_mask": jnp.ones((2, 12), bool),
  }


def by_hand(model, target, params, batch):
  """(loss, targets in the top two) per offset, all logits at once, NumPy."""
  context = HeadContext(Placement.packed(batch["positions"], batch["segments"]))
  out = model.apply_trunk(params["lm"], batch["tokens"], context.placement)
  norm = params["lm"]["final_norm"]
  table_DV = model.trunk.unembedding(params["lm"])
  hidden_MBTD = [model.trunk.final_norm(norm, out.hidden_BTD)]
  for m in range(len(OFFSETS) - 1):
    own = jax.tree.map(lambda x, m=m: x[m], params["heads"])
    hidden_MBTD.append(model.apply_head(own, norm, out.tap_BTD, context))
  logits_MBTV = np.asarray(
    unembed(jnp.stack(hidden_MBTD), table_DV), np.float64
  )
  log_probs_MBTV = logits_MBTV - np.log(
    np.exp(logits_MBTV).sum(axis=-1, keepdims=True)
  )
  tokens_BT, segments_BT = (
    np.asarray(batch[name]) for name in ("tokens", "segments")
  )
  v = logits_MBTV.shape[-1]
  losses, hits = [], []
  for m, offset in enumerate(OFFSETS):
    loss = hit = n = 0
    for b, t in np.ndindex(*tokens_BT.shape):
      at = t + offset
      if at >= tokens_BT.shape[1] or segments_BT[b, t] != segments_BT[b, at]:
        continue
      probs_V = np.eye(v)[tokens_BT[b, at]]
      if m and target == "teacher_soft":
        probs_V = np.exp(log_probs_MBTV[0, b, at - 1])
      elif m and target == "teacher_argmax":
        probs_V = np.eye(v)[log_probs_MBTV[0, b, at - 1].argmax()]
      elif m and target == "smoothed":
        probs_V = (1 - EPSILON) * probs_V + EPSILON / v
      loss -= probs_V @ log_probs_MBTV[m, b, t]
      hit += probs_V.argmax() in np.argsort(log_probs_MBTV[m, b, t])[-2:]
      n += 1
    losses.append(loss / n)
    hits.append(hit)
  return losses, hits


@pytest.mark.parametrize("target", [*TARGETS, "smoothed"])
def test_all_modes_learn_what_a_loop_over_positions_says(target):
  model, batch = a_model(), a_batch()
  params = model.init(jax.random.key(0))
  counts_M = batch_targets(batch, OFFSETS).counts_M
  coefficients_M = offset_coefficients(counts_M, ())
  want_M, hits_M = by_hand(model, target, params, batch)
  gradients = {}
  for mode in ("fused", "remat", "unrolled"):
    loss = config_lib.Loss(targets=target, mode=mode, chunk_tokens=8)
    (value, sums), gradients[mode] = jax.jit(
      jax.value_and_grad(
        lambda params, loss=loss: model_loss(
          model, loss, params, jnp.zeros(3), batch, coefficients_M,
          readouts=(TopTwo(),),
        ),
        has_aux=True,
      )
    )(params)  # fmt: skip
    np.testing.assert_allclose(value, sum(want_M), rtol=1e-5)
    np.testing.assert_allclose(sums.nll_M / counts_M, want_M, rtol=1e-5)
    np.testing.assert_array_equal(sums.extra["top_two"], hits_M)
  for mode in ("remat", "unrolled"):
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5),
      gradients["fused"],
      gradients[mode],
    )


def test_a_schedule_says_what_counts_and_what_runs():
  model, batch = a_model(), a_batch()
  params = model.init(jax.random.key(0))

  @jax.jit
  def at(step):
    value, sums, grads, _ = loss_and_gradients(
      model, config_lib.Loss(), 1, params, batch, schedule=Growing(), step=step
    )
    return value, sums, grads["heads"]

  (first, early, early_heads), (later, late, late_heads) = at(0), at(1)
  means_M = late.nll_M / late.count_M
  np.testing.assert_allclose(first, means_M[0] + means_M[1], rtol=1e-5)
  np.testing.assert_allclose(
    later, means_M[0] + means_M[1] + means_M[2] / 2, rtol=1e-5
  )
  assert early.count_M[2] == 0 < late.count_M[2]
  for early_leaf, late_leaf in zip(
    jax.tree.leaves(early_heads), jax.tree.leaves(late_heads), strict=True
  ):
    assert not np.any(early_leaf[1]) and np.any(late_leaf[1])


def test_a_toy_is_one_line_away_from_the_command_line(
  in_tiny_root, tmp_path, capsys, fails
):
  argv = ["train", "tiny.py", "--workdir", str(tmp_path / "run")]
  argv += ["--train.steps", "2", "--loss.targets"]
  assert cli.main([*argv, "smoothed"]) == 0
  line = fails(*argv, "guessed")
  assert "'guessed' is not one of" in line
  assert all(name in line for name in TARGETS)
