"""Numerics that must hold on whatever device JAX runs on; see gpu_check.sh."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mtpjax import config, losses, parallel
from mtpjax.decode import Request, Spec, Stages, Tree, decode_params, generate
from mtpjax.heads import MultiTokenModel

pytestmark = pytest.mark.device

MODEL = config.Model(
  vocab_size=97,
  d_model=64,
  n_layers=5,
  n_attention_heads=4,
  n_kv_heads=2,
  d_head=16,
  d_ff=128,
  dtype="float32",
)


@pytest.fixture(autouse=True)
def highest_precision():
  with jax.default_matmul_precision("highest"):
    yield


@functools.cache
def loss_gradients(mode: str, dtype: str):
  """The loss of residual heads on plain arrays, V and tokens indivisible."""
  b, t, d, v, n = 3, 37, 32, 301, 4
  keys = jax.random.split(jax.random.key(0), 5)
  tokens_BT = jax.random.randint(keys[0], (b, t), 0, v)
  segments_BT = jnp.where(jnp.arange(t) < 20, 1, 2) * jnp.ones((b, 1), int)
  targets = losses.shift_targets(
    tokens_BT, segments_BT, jnp.ones((b, t), bool), (1, 2, 3, 4)
  )
  coefficients_M = losses.offset_coefficients(targets.counts_M, ())
  inputs = losses.HeadInputs(
    jax.random.normal(keys[1], (n - 1, d, d)) / d**0.5,
    None,
    jax.random.normal(keys[2], (b, t, d)).astype(dtype),
    jax.random.normal(keys[3], (b, t, d)).astype(dtype),
    jax.random.normal(keys[4], (d, v)),
    jnp.zeros(n - 1),
  )

  def head(params, shared, tap_BTD, context):
    return tap_BTD + jax.nn.silu(tap_BTD @ params.astype(tap_BTD.dtype))

  def loss(inputs):
    return losses.multi_offset_loss(
      head, inputs, targets, coefficients_M, mode=mode, chunk_tokens=16
    )[0]

  value, gradients = jax.jit(jax.value_and_grad(loss))(inputs)
  return np.float64(value), jax.tree.map(
    lambda g: np.asarray(g, np.float64), gradients
  )


def assert_close(got, wanted, tolerance):
  assert abs(got[0] - wanted[0]) <= tolerance * abs(wanted[0])
  for a, b in zip(
    jax.tree.leaves(got[1]), jax.tree.leaves(wanted[1]), strict=True
  ):
    assert np.max(np.abs(a - b)) <= tolerance * np.max(np.abs(b))


@pytest.mark.parametrize("mode", ["fused", "remat"])
def test_modes_agree_with_the_ordinary_loss(mode):
  assert_close(
    loss_gradients(mode, "float32"),
    loss_gradients("unrolled", "float32"),
    1e-5,
  )


@pytest.mark.parametrize("mode", ["fused", "remat"])
def test_bfloat16_is_close_to_float32(mode):
  assert_close(
    loss_gradients(mode, "bfloat16"),
    loss_gradients("unrolled", "float32"),
    3e-2,
  )


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_chain_and_tree_decode_what_plain_decoding_does(temperature):
  model = MultiTokenModel(MODEL, config.Heads(), parallel.single_device_mesh())
  params = jax.tree.map(lambda x: 3 * x, model.init(jax.random.key(1)))
  params = decode_params(model, params)
  prompts = np.random.default_rng(0).integers(0, 97, (4, 20))
  requests = [
    Request(
      tuple(prompt[: 5 * i + 1].tolist()),
      30 - i,
      temperature=temperature,
      seed=3,
      index=i,
    )
    for i, prompt in enumerate(prompts)
  ]
  trees = (
    Tree.root(),
    Tree.chain(3),
    Tree.from_rank_paths([(0,), (1,), (0, 0), (1, 0), (0, 0, 0)]),
  )

  def decode(tree):
    spec, results = Spec(model, tree, Stages.of(requests)), {}
    for latest in generate([spec], params, requests, (5,), 4, 64):
      results |= latest
    return [results[i].ids for i in range(len(requests))]

  plain, *others = map(decode, trees)
  for other in others:
    assert other == plain
