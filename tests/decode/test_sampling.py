"""Noise belongs to key and position; what it draws follows the softmax."""

import jax
import jax.numpy as jnp
import numpy as np
from decoding import (
  ROOT,
  V,
  counter_params,
  multi_token_model,
  random_params,
  reference_scores,
  run,
  to_decode,
)

from mtpjax import decode
from mtpjax.decode import noise as noises
from mtpjax.decode import sampling
from mtpjax.decode.controls import ControlShapes
from mtpjax.decode.history import History

# Upper 1e-4 quantile of chi-square with V - 1 = 10 degrees of freedom.
LIMIT = 35.56


def keys(pairs):
  return jnp.stack([noises.request_key(seed, index) for seed, index in pairs])


def test_noise_is_a_function_of_key_and_position_alone():
  keys_B = keys([(0, 0), (0, 1), (1, 0), (0, 0)])
  positions_BT = jnp.array([[5, 6, 5], [5, 6, 7], [5, 6, 7], [6, 5, 1 << 20]])
  noise = np.asarray(noises.position_noise(keys_B, positions_BT, V))
  np.testing.assert_array_equal(noise[0, 0], noise[0, 2])
  np.testing.assert_array_equal(noise[3, 0], noise[0, 1])
  np.testing.assert_array_equal(noise[3, 1], noise[0, 0])
  # Every other pair of key and position has noise of its own.
  vectors = {(0, 0, 5): noise[0, 0], (0, 0, 6): noise[0, 1]}
  vectors |= {(0, 1, p): noise[1, i] for i, p in enumerate((5, 6, 7))}
  vectors |= {(1, 0, p): noise[2, i] for i, p in enumerate((5, 6, 7))}
  flat = np.concatenate([*vectors.values(), noise[3, 2]])
  assert len(np.unique(flat)) == 9 * V
  # Neither the batch nor the block has a say.
  alone = noises.position_noise(keys_B[1:2], jnp.array([[6]]), V)
  np.testing.assert_array_equal(alone[0, 0], noise[1, 1])


def chi_square(counts_V, probs_V):
  expected_V = probs_V * counts_V.sum()
  return np.sum((counts_V - expected_V) ** 2 / expected_V)


def scores_of(logits_BTV, temperatures, noise_BTV):
  """What a token is the arg max of, temperature alone."""
  requests = [decode.Request((1,), 1, temperature=t) for t in temperatures]
  stages = decode.Stages.of(requests)
  controls = ControlShapes.of(stages, requests, V).pack(requests)
  tables = sampling.Tables(jnp.array([-1]), None)
  history = History(jnp.zeros(logits_BTV.shape[:2], int), None, None, None)
  final_BTV = sampling.final_logits(
    stages, tables, controls, None, history, logits_BTV
  )
  return sampling.choose(controls, final_BTV, noise_BTV)


def softmax(logits_V):
  probs_V = np.exp(logits_V - logits_V.max())
  return probs_V / probs_V.sum()


def test_scores_draw_from_the_softmax_at_the_temperature():
  logits_V = np.linspace(-1.5, 1.5, V)
  n = 20_000
  noise_BTV = noises.position_noise(
    keys([(7, 0)]), jnp.arange(n)[None], V
  )  # fmt: skip
  for temperature in (0.5, 1.0, 2.0):
    drawn = jnp.argmax(
      scores_of(
        jnp.asarray(logits_V, jnp.float32)[None, None], [temperature], noise_BTV
      ),
      axis=-1,
    )
    counts_V = np.bincount(np.asarray(drawn[0]), minlength=V)
    assert chi_square(counts_V, softmax(logits_V / temperature)) < LIMIT
    # The test would see another temperature.
    assert chi_square(counts_V, softmax(logits_V / temperature / 1.2)) > LIMIT


def test_rows_at_temperature_zero_are_greedy_among_sampled_ones():
  logits = jax.random.normal(jax.random.key(0), (3, 2, V))
  noise = noises.position_noise(
    keys([(0, 0), (0, 1), (0, 2)]), jnp.zeros((3, 2), jnp.int32), V
  )
  scores = scores_of(logits, [0.0, 1.0, 0.0], noise)
  np.testing.assert_array_equal(scores[0], logits[0])
  np.testing.assert_array_equal(scores[2], logits[2])
  np.testing.assert_allclose(scores[1], logits[1] + noise[1], rtol=1e-6)
  np.testing.assert_array_equal(
    scores_of(logits, [0.0, 0.0, 0.0], None), logits
  )
  assert np.isfinite(scores).all()  # no division by a temperature of 0


def test_first_tokens_of_many_requests_follow_the_model():
  model, temperature = multi_token_model(), 2.0
  params = random_params(model, 3)
  decoded = to_decode(model, params)
  prompt = (4, 1, 7)
  counts_V = np.zeros(V)
  for call in range(400):
    requests = [
      decode.Request(
        prompt, 1, temperature=temperature, seed=5, index=4 * call + b
      )
      for b in range(4)
    ]
    for result in run(model, decoded, ROOT, requests):
      counts_V[result.ids[0]] += 1
  _, logits = reference_scores(model, params, requests, [prompt] * 4)
  logits_V = logits[0, len(prompt) - 1]
  assert chi_square(counts_V, softmax(logits_V / temperature)) < LIMIT
  assert chi_square(counts_V, softmax(logits_V)) > LIMIT


def test_requests_of_one_seed_differ_by_index_and_only_by_it():
  model = multi_token_model()
  flat = counter_params(is_flat=True)
  requests = [
    decode.Request((1,), 12, temperature=1.0, seed=s, index=i)
    for s, i in [(0, 0), (0, 1), (1, 0), (0, 0)]
  ]
  first, second, third, again = run(model, flat, ROOT, requests)
  assert first == again
  assert len({first.ids, second.ids, third.ids}) == 3
