"""What heads alone learn: labels or the model's own choices, all modes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from mtpjax import config as config_lib
from mtpjax import losses
from mtpjax.heads import HeadContext
from mtpjax.heads.parts import EVERYTHING, Trained
from mtpjax.model import Placement, unstack_layers

OFFSETS = (1, 2, 4)
MODES = ("fused", "remat", "unrolled")
TARGETS = ("labels", "teacher_argmax", "teacher_soft")


@functools.cache
def a_model(unembedding="shared", tap="normed"):
  heads = config_lib.Heads(
    kind="medusa", offsets=OFFSETS, tap=tap, matched=False,
    unembedding=unembedding, n_layers=2,
  )  # fmt: skip
  return tiny.multi_token_model(None, heads, vocab_size=23, d_model=8)


def a_batch():
  rng = np.random.default_rng(3)
  documents = [rng.integers(0, 23, n).tolist() for n in (5, 7, 12)]
  masks = [
    [True] * 5,
    [False, False, True, True, True, False, True],
    [True] * 12,
  ]
  return tiny.pack(
    [documents[:2], documents[2:]], 12, 23, [masks[:2], masks[2:]]
  )


def value_and_gradients(model, mode, targets, only_heads, states=None):
  """(params) -> ((loss, sums), gradients), by the code under test."""
  loss = config_lib.Loss(mode=mode, chunk_tokens=5, targets=targets, z_loss=0.1)
  batch = a_batch()
  if states is not None:
    batch["hidden"] = states

  def f(params):
    shifted = losses.batch_targets(batch, OFFSETS)
    coefficients_M = jnp.array([1.0, 0.5, 2.0]) * losses.offset_coefficients(
      shifted.counts_M, ()
    )
    return losses.model_loss(
      model, loss, params, jnp.zeros(3), batch, coefficients_M,
      Trained(("heads",)) if only_heads else EVERYTHING,
    )  # fmt: skip

  return jax.jit(jax.value_and_grad(f, has_aux=True))


def by_hand(model, targets, batch):
  """(params) -> (loss, (nll_M, correct_M)), with all logits and plain loops."""
  weights = (1.0, 0.5, 2.0)

  def silu(x):
    return x / (1 + jnp.exp(-x))

  def f(params):
    lm, heads = params["lm"], params["heads"]
    out = model.apply_trunk(
      lm,
      batch["tokens"],
      Placement.packed(batch["positions"], batch["segments"]),
    )
    x = out.hidden_BTD
    normed = x / jnp.sqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-5)
    normed *= lm["final_norm"]["scale"]
    plain = normed @ lm["unembedding"]
    loss, seen = 0.0, []
    for m, offset in enumerate(OFFSETS):
      hidden, unembedding = normed, lm["unembedding"]
      if m > 0:
        own = jax.tree.map(lambda leaf, m=m: leaf[m - 1], heads)
        for n in ("", "_2"):
          mapped = hidden @ own["map" + n]["kernel"] + own["bias" + n]
          hidden = hidden + silu(mapped)
        unembedding = own.get("unembedding", unembedding)
      logits = hidden @ unembedding
      terms, nlls, hits = [], [], []
      for b in range(2):
        for t in range(12 - offset):
          ahead = batch["segments"][b, t + offset]
          if ahead == 0 or ahead != batch["segments"][b, t]:
            continue
          if not batch["loss_mask"][b, t + offset]:
            continue
          label = jax.nn.one_hot(batch["tokens"][b, t + offset], 23)
          teacher = jax.lax.stop_gradient(plain[b, t + offset - 1])
          if m > 0 and targets == "teacher_argmax":
            label = jax.nn.one_hot(jnp.argmax(teacher), 23)
          if m > 0 and targets == "teacher_soft":
            label = jax.nn.softmax(teacher)
          lse = jax.nn.logsumexp(logits[b, t])
          nlls.append(lse - label @ logits[b, t])
          terms.append(nlls[-1] + 0.1 * lse**2)
          hits.append(jnp.argmax(label) == jnp.argmax(logits[b, t]))
      loss += weights[m] * sum(terms) / len(terms)
      seen.append((sum(nlls), sum(hits)))
    return loss, seen

  return jax.jit(jax.value_and_grad(f, has_aux=True))


@pytest.mark.parametrize("unembedding", ["shared", "copied"])
@pytest.mark.parametrize("targets", TARGETS)
def test_every_mode_is_the_loss_written_out(targets, unembedding):
  model = a_model(unembedding)
  params = tiny.random_params(model.abstract(), 5)
  (loss, seen), gradients = by_hand(model, targets, a_batch())(params)
  for mode in MODES:
    ours = value_and_gradients(model, mode, targets, False)(params)
    np.testing.assert_allclose(ours[0][0], loss, rtol=2e-6)
    for m in range(3):
      np.testing.assert_allclose(ours[0][1].nll_M[m], seen[m][0], rtol=1e-5)
      assert ours[0][1].correct_M[m] == seen[m][1]
    tiny.assert_close(ours[1], gradients, 1e-5)
    # Heads alone: their gradients are the same, and there are no others.
    alone = value_and_gradients(model, mode, targets, True)(params)
    np.testing.assert_allclose(alone[0][0], loss, rtol=2e-6)
    tiny.assert_close(alone[1]["heads"], gradients["heads"], 1e-5)
    for leaf in jax.tree.leaves(alone[1]["lm"]):
      assert not np.any(leaf)


@pytest.mark.parametrize("tap", ["normed", "last"])
def test_states_given_stand_for_the_trunk(tap):
  model, batch = a_model("shared", tap), a_batch()
  params = tiny.random_params(model.abstract(), 6)
  states = model.apply_trunk(
    params["lm"],
    batch["tokens"],
    Placement.packed(batch["positions"], batch["segments"]),
  ).tap_BTD
  run = value_and_gradients(model, "fused", "teacher_soft", True)(params)
  given = value_and_gradients(model, "fused", "teacher_soft", True, states)
  given = given(params)
  np.testing.assert_allclose(given[0][0], run[0][0], rtol=1e-6)
  tiny.assert_close(given[1]["heads"], run[1]["heads"], 1e-5)


def test_heads_of_a_pretrained_model_begin_as_its_next_token_output():
  for kind, unembedding in (
    ("medusa", "shared"), ("medusa", "copied"), ("linear", "shared")
  ):  # fmt: skip
    heads = config_lib.Heads(
      kind=kind, offsets=(1, 2, 3), tap="normed", matched=False,
      unembedding=unembedding,
    )  # fmt: skip
    model = tiny.multi_token_model(None, heads, tied_embeddings=True)
    params = model.init(jax.random.key(0))
    tokens_BT = jnp.arange(10).reshape(2, 5)

    context = HeadContext(
      Placement.packed(jnp.tile(jnp.arange(5), (2, 1)), jnp.ones((2, 5), int))
    )
    out = model.apply_trunk(params["lm"], tokens_BT, context.placement)
    split = params | {"heads": unstack_layers(params["heads"])}
    normed = [
      model.apply_head(
        {k: v for k, v in one.items() if k != "unembedding"},
        params["lm"]["final_norm"], out.tap_BTD[:, -1:], context,
      )
      for one in split["heads"]
    ]  # fmt: skip
    logits_BMV = model.head_logits(split, normed)
    own_B1V = model.trunk.logits(params["lm"], out.hidden_BTD[:, -1:])
    np.testing.assert_allclose(
      logits_BMV, np.broadcast_to(own_B1V, logits_BMV.shape), rtol=1e-5,
      atol=1e-6,
    )  # fmt: skip
