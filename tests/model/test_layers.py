"""Norm, rotary positions and the block, against NumPy and known values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import tiny

from mtpjax.model import Block, norm, rope
from mtpjax.model.placement import Placement


def test_rms_norm_has_the_known_value():
  # mean square of (3, 4) is 12.5
  y = norm.rms_norm(jnp.array([1.0, 2.0]), jnp.array([3.0, 4.0]), 0.0)
  np.testing.assert_allclose(y, [0.84852814, 2.2627417], rtol=1e-6)
  # Epsilon is added to the mean square, not to its root.
  y = norm.rms_norm(jnp.ones(2), jnp.array([3.0, 4.0]), 3.5)
  np.testing.assert_allclose(y, [0.75, 1.0], rtol=1e-6)


def test_rms_norm_of_bfloat16_is_computed_wide():
  x = np.random.default_rng(0).normal(size=(5, 512)).astype(jnp.bfloat16)
  y = norm.rms_norm(jnp.ones(512), jnp.asarray(x), 1e-5)
  assert y.dtype == jnp.bfloat16
  wide = reference.rms_norm(np.ones(512), x.astype(np.float64), 1e-5)
  # One rounding at the end, to 8 significant bits.
  np.testing.assert_allclose(np.asarray(y, np.float64), wide, rtol=2**-8)


def test_rotary_positions_turn_pairs_by_known_angles():
  # H = 4: pairs (0, 2) and (1, 3) with frequencies 1 and theta^(-1/2).
  x = jnp.array([1.0, 1.0, 0.0, 0.0]).reshape(1, 1, 1, 4)
  y = rope.rotate(x, jnp.array([[3]]), np.array([1, 0.1]))
  np.testing.assert_allclose(
    y.ravel(), [np.cos(3), np.cos(0.3), np.sin(3), np.sin(0.3)], rtol=1e-6
  )


def test_frequencies_stretch_as_llama3_publishes():
  # theta^(-i/4) with theta = 10^4 turn 1000/2pi * (1, .1, .01, .001) times:
  # 159, 15.9, 1.59 and 0.159.
  plain = dict(d_head=8, rope_theta=1e4)
  stretched = dict(
    plain, rope_factor=8.0, rope_low_freq_factor=1.0,
    rope_high_freq_factor=4.0, rope_original_length=1000,
  )  # fmt: skip
  np.testing.assert_allclose(
    rope.frequencies(tiny.model_config(**plain)), [1, 0.1, 0.01, 0.001]
  )
  np.testing.assert_allclose(
    rope.frequencies(tiny.model_config(**stretched, rope_scaling="linear")),
    [0.125, 0.0125, 0.00125, 0.000125],
  )
  share = (1000 * 0.01 / (2 * np.pi) - 1) / 3
  between = (1 - share) * 0.01 / 8 + share * 0.01
  np.testing.assert_allclose(
    rope.frequencies(tiny.model_config(**stretched, rope_scaling="llama3")),
    [1, 0.1, between, 0.000125],
  )


def test_rotary_scores_depend_on_the_distance_alone(x64):
  rng = np.random.default_rng(1)
  q, k = rng.normal(size=(2, 1, 1, 2, 8))
  angles = rope.frequencies(tiny.model_config(d_head=8))

  def score(q_position, k_position):
    turned_q = rope.rotate(q[:, None], jnp.array([[q_position]]), angles)
    turned_k = rope.rotate(k[:, None], jnp.array([[k_position]]), angles)
    return jnp.sum(turned_q * turned_k, axis=-1)

  expected = score(0, 0)
  np.testing.assert_allclose(expected[0, 0], np.sum(q * k, axis=-1)[0])
  np.testing.assert_allclose(score(2000, 2000), expected, rtol=1e-10)
  np.testing.assert_allclose(score(2007, 2000), score(7, 0), rtol=1e-10)
  assert np.all(np.abs(score(7, 0) - expected) > 1e-3)


def test_large_positions_of_bfloat16_keep_their_angle():
  # 257 is no bfloat16: angles computed in it would be those of 256.
  x = jnp.array([1.0, 0.0], jnp.bfloat16).reshape(1, 1, 1, 2)
  y = rope.rotate(x, jnp.array([[257]]), np.ones(1)).astype(jnp.float32)
  np.testing.assert_allclose(y.ravel(), [np.cos(257), np.sin(257)], rtol=2**-8)


@pytest.mark.parametrize("n_kv_heads", [4, 2, 1])
def test_a_block_is_multi_head_attention_written_with_loops(n_kv_heads, x64):
  config = tiny.model_config(
    d_model=10, n_attention_heads=4, n_kv_heads=n_kv_heads, d_head=6, d_ff=14,
    dtype="float64", param_dtype="float64", norm_eps=0.1, rope_theta=50.0,
  )  # fmt: skip
  rng = np.random.default_rng(n_kv_heads)
  x_BTD = rng.normal(size=(2, 7, 10))
  segments_BT = np.array([[1, 1, 1, 1, 1, 1, 1], [1, 2, 2, 2, 3, 3, 0]])
  positions_BT = tiny.positions(segments_BT)
  layer = Block(config)
  placement = Placement.packed(positions_BT, jnp.asarray(segments_BT))
  params = tiny.random_params(
    jax.eval_shape(
      lambda key: layer.init(key, x_BTD, placement)["params"],
      jax.random.key(0),
    ),
    seed=1,
  )
  y_BTD, rows = jax.jit(layer.apply)({"params": params}, x_BTD, placement)
  assert rows.keys_BKSH.shape == (2, n_kv_heads, 7, 6)
  for b in range(2):
    expected_TD = reference.block(
      params, x_BTD[b], positions_BT[b], segments_BT[b], config
    )
    # jax.nn.dot_product_attention has its softmax in float32, always.
    tiny.assert_close(y_BTD[b], expected_TD, 1e-7)
  # The rows that stand-alone projections leave are those of the pass.
  alone = layer.apply(
    {"params": params}, x_BTD, positions_BT, method=layer.rows
  )
  tiny.assert_close(alone, rows, 1e-12)
