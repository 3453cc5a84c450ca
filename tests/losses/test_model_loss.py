"""The loss through the whole model: packing, masks, probes, plain LM."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import programs
import pytest
import tiny

from mtpjax import config as config_lib
from mtpjax import losses
from mtpjax.heads import HeadContext
from mtpjax.model import Block, Placement, unstack_layers

B, T, V = 8, 12, 248  # one shape, so one compilation serves most tests
OFFSETS = (1, 2, 3, 4)


@functools.cache
def model_and_step(tap="before_last"):
  """Model, parameters, step(batch, weights_M) -> ((loss, sums), gradients)."""
  heads = config_lib.Heads(offsets=OFFSETS, tap=tap, matched=False)
  model = tiny.multi_token_model(None, heads)
  params = tiny.random_params(model.abstract(), seed=2)
  step = jax.jit(tiny.value_and_grad(model))

  def run(batch, weights_M=(1.0,) * 4):
    return step(params, jnp.zeros(4), batch, jnp.asarray(weights_M))

  return model, params, run


def packed(rows, masks=None):
  """Rows filled up to B with padding alone."""
  empty = [[] for _ in range(B - len(rows))]
  if masks is not None:
    masks = [*masks, *empty]
  return tiny.pack([*rows, *empty], T, V, masks)


def documents(*lengths, seed=0):
  rng = np.random.default_rng(seed)
  return [rng.integers(1, V, n).tolist() for n in lengths]


def test_packed_documents_are_the_same_documents_apart():
  _, _, run = model_and_step()
  a, b, c, d, e, f, g = documents(3, 4, 1, 5, 1, 1, 9)
  # The first row is [1 1 1 2 2 2 2 0 ...]; others have documents of length 1.
  together, gradients = run(packed([[a, b], [c, d, e], [f, g]]))
  apart, gradients_apart = run(packed([[x] for x in (a, b, c, d, e, f, g)]))
  # By hand: sum over documents of max(length - offset, 0).
  counts = [sum(max(n - m, 0) for n in (3, 4, 1, 5, 1, 1, 9)) for m in OFFSETS]
  assert together[1].count_M.tolist() == counts
  assert apart[1].count_M.tolist() == counts
  tiny.assert_close(together, apart, 1e-6)
  np.testing.assert_allclose(together[1].nll_M, apart[1].nll_M, rtol=1e-6)
  tiny.assert_close(gradients, gradients_apart, 1e-5)


def test_padding_ids_change_nothing():
  _, _, run = model_and_step()
  batch = packed([documents(3, 4), documents(9)])
  changed = batch | {
    "tokens": np.where(batch["segments"] == 0, 77, batch["tokens"])
  }
  assert np.any(changed["tokens"] != batch["tokens"])
  (loss, sums), gradients = run(batch)
  (other_loss, other_sums), other_gradients = run(changed)
  jax.tree.map(
    np.testing.assert_array_equal, (loss, sums), (other_loss, other_sums)
  )
  jax.tree.map(np.testing.assert_array_equal, gradients, other_gradients)


def test_a_batch_of_padding_alone_trains_nothing():
  _, _, run = model_and_step()
  (loss, sums), gradients = run(packed([]))
  assert loss == 0
  for leaf in jax.tree.leaves((sums, gradients)):
    np.testing.assert_array_equal(leaf, np.zeros_like(leaf))


def test_identical_documents_contribute_equally():
  _, _, run = model_and_step()
  (document,) = documents(6)
  on, off = [True] * 6, [False] * 6
  row = [[document, document]]
  first, _ = run(packed(row, [[on, off]]))
  second, _ = run(packed(row, [[off, on]]))
  tiny.assert_close(second, first, 1e-6)
  # And both together are the mean of the two, not a sum with weights.
  (loss, sums), _ = run(packed(row, [[on, on]]))
  np.testing.assert_allclose(loss, first[0], rtol=1e-6)
  np.testing.assert_allclose(sums.nll_M, 2 * first[1].nll_M, rtol=1e-6)


def test_the_last_prompt_token_learns_the_answer():
  _, _, run = model_and_step()
  prompt, answer = documents(5, 1)
  mask = [[[False] * 5 + [True]]]
  (_, sums), gradients = run(packed([[prompt + answer]], mask))
  assert sums.count_M.tolist() == [1, 1, 1, 1]
  # The answer is never read by a position that counts, the prompt is.
  embedding_VD = np.asarray(gradients[0]["lm"]["embedding"])
  read = set(np.nonzero(np.any(embedding_VD != 0, axis=-1))[0])
  assert read == set(prompt) and answer[0] not in read


@pytest.mark.parametrize("tap", ["before_last", "last"])
def test_probes_are_the_norms_of_each_offsets_gradient(tap):
  model, params, run = model_and_step(tap)
  batch = packed([documents(3, 4), documents(5, 6), documents(12)])
  weights_M = (1.0, 0.5, 2.0, 3.0)
  (_, sums), (_, squared_M) = run(batch, weights_M)

  lm = params["lm"]
  context = HeadContext(Placement.packed(batch["positions"], batch["segments"]))
  out = jax.jit(
    lambda lm: model.trunk.apply(
      {"params": lm}, batch["tokens"], context.placement
    )
  )(lm)

  def mean_nll(hidden_BTD, m):
    # The final norm and cross-entropy again, from optax.
    x = hidden_BTD / jnp.sqrt(
      jnp.mean(hidden_BTD**2, axis=-1, keepdims=True) + 1e-5
    )
    logits_BTV = (x * lm["final_norm"]["scale"]) @ lm["unembedding"]
    nll_BT = optax.softmax_cross_entropy_with_integer_labels(
      logits_BTV[:, :-m], batch["tokens"][:, m:]
    )
    segments_BT = batch["segments"]
    same_BT = segments_BT[:, m:] == segments_BT[:, :-m]
    valid_BT = same_BT & (segments_BT[:, m:] > 0)
    return jnp.sum(nll_BT * valid_BT) / jnp.sum(valid_BT)

  def extra(tap_BTD, layer, m):
    hidden_BTD, _ = Block(model.config).apply(
      {"params": layer}, tap_BTD, context.placement
    )
    return mean_nll(hidden_BTD, m)

  def next_token(tap_BTD):
    if tap == "last":
      return mean_nll(tap_BTD, 1)
    return extra(tap_BTD, unstack_layers(lm["layers"])[-1], 1)

  @jax.jit
  def expected_norms(tap_BTD):
    gradients = [jax.grad(next_token)(tap_BTD)]
    layers = unstack_layers(params["heads"]["layer"])
    for m, layer in zip(OFFSETS[1:], layers, strict=True):
      gradients.append(jax.grad(extra)(tap_BTD, layer, m))
    return [jnp.linalg.norm(g) for g in gradients]

  norms = np.array(weights_M) * expected_norms(out.tap_BTD)
  np.testing.assert_allclose(np.sqrt(squared_M), norms, rtol=1e-5)


def test_one_offset_is_the_plain_language_model_bit_for_bit():
  one = config_lib.Heads(offsets=(1,))
  model = tiny.multi_token_model(None, one)
  params = tiny.random_params(model.abstract(), seed=3)
  assert set(params) == {"lm"}

  # A plain language model: embedding, blocks in a loop, norm, unembedding.
  batch = packed([documents(3, 4), documents(5, 6), documents(12)])
  targets = losses.batch_targets(batch, (1,))
  placement = Placement.packed(batch["positions"], batch["segments"])
  count = int(targets.counts_M[0])

  def plain(params):
    lm = params["lm"]
    x_BTD = lm["embedding"][batch["tokens"]]

    def layer(x_BTD, layer_params):
      return Block(model.config).apply(
        {"params": layer_params}, x_BTD, placement
      )[0], None

    x_BTD, _ = jax.lax.scan(layer, x_BTD, lm["layers"])
    logits_BTV = model.trunk.logits(lm, x_BTD)
    nll_BT = optax.softmax_cross_entropy_with_integer_labels(
      logits_BTV, targets.ids_MBT[0]
    )
    return jnp.sum(jnp.where(targets.valid_MBT[0], nll_BT, 0)) / count

  expected, expected_gradients = programs.full_jit(jax.value_and_grad(plain))(
    params
  )

  def step(mode):
    loss = config_lib.Loss(mode=mode, chunk_tokens=B * T)
    f = programs.full_jit(tiny.value_and_grad(model, loss))
    (value, _), (gradients, _) = f(params, jnp.zeros(1), batch, jnp.ones(1))
    return value, gradients

  value, gradients = step("unrolled")
  assert value == expected
  jax.tree.map(np.testing.assert_array_equal, gradients, expected_gradients)
  # The hand-written gradients of the other modes round in another order.
  value, gradients = step("fused")
  assert abs(value - expected) <= 1e-6 * expected
  tiny.assert_close(gradients, expected_gradients, 1e-6)


def test_tied_embeddings_get_both_gradients():
  heads = config_lib.Heads(kind="linear", offsets=(1, 2), matched=False)
  untied = tiny.multi_token_model(None, heads)
  tied = tiny.multi_token_model(None, heads, tied_embeddings=True)
  params = tiny.random_params(tied.abstract(), seed=4)
  assert "unembedding" not in params["lm"]
  table_VD = params["lm"]["embedding"]
  apart = params | {"lm": params["lm"] | {"unembedding": table_VD.T}}
  batch = packed([documents(5, 6), documents(12)])

  def run(model, params):
    step = jax.jit(tiny.value_and_grad(model))
    (loss, _), (gradients, _) = step(params, jnp.zeros(2), batch, jnp.ones(2))
    return loss, gradients

  loss, gradients = run(tied, params)
  other_loss, others = run(untied, apart)
  assert abs(loss - other_loss) <= 1e-6 * loss
  others["lm"]["embedding"] += others["lm"].pop("unembedding").T
  tiny.assert_close(gradients, others, 1e-6)
