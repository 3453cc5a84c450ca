"""The loss on given hidden states, against loops, and its modes."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import programs
import pytest
import reference
import tiny

from mtpjax import config as config_lib
from mtpjax import losses, parallel
from mtpjax.heads import HeadContext
from mtpjax.model import Placement

KINDS = ("block", "linear", "medusa")
MODES = ("fused", "remat", "unrolled")
OFFSETS = (1, 2, 4)
ROWS = dict(
  # (rows of documents, masks): see `tiny.pack`; 8 tokens per row.
  packed=([[[1, 5, 4], [2, 7, 7, 3]], [[6], [8, 9, 1, 1, 2, 4, 5]]], None),
  holes=(
    [[[1, 2, 3, 4, 5, 6, 7, 8]], [[3, 1, 4, 1], [5, 9, 2, 6]]],
    [
      [[False, False, False, True, False, True, True, True]],
      [[True, False, True, True], [False, False, True, True]],
    ],
  ),
  padding=([[[1, 2, 3, 4, 5]], [[6, 7]]], None),
  empty=([[], []], None),
)


def batch_of(name):
  rows, mask = ROWS[name]
  return tiny.pack(rows, 8, 11, mask)


def small_model(kind, offsets=OFFSETS, dtype="float32", **changes):
  sizes = dict(
    vocab_size=11, d_model=8, n_attention_heads=4, n_kv_heads=2, d_head=2,
    d_ff=12, dtype=dtype, param_dtype=dtype,
  )  # fmt: skip
  heads = config_lib.Heads(kind=kind, offsets=offsets, matched=False)
  return tiny.multi_token_model(None, heads, **(sizes | changes))


def random_inputs(model, b, t, seed=0):
  """Parameters and hidden states, nothing zero."""
  d, v = model.config.d_model, model.config.vocab_size
  dtype = jnp.dtype(model.config.dtype)
  rng = np.random.default_rng(seed)
  params = tiny.random_params(model.abstract(), seed, scale=0.7)

  def array(*shape):
    return rng.normal(size=shape).astype(dtype)

  return losses.HeadInputs(
    per_offset=params.get("heads"),
    shared=params["lm"]["final_norm"],
    hidden_BTD=array(b, t, d),
    tap_BTD=array(b, t, d),
    unembedding_DV=array(d, v),
    probes=np.zeros(model.heads.n_extra, np.float32),
  )


def loss_of(model, mode, chunk_tokens=5, z_loss=0.01, factor=1.0):
  """(inputs, batch, coefficients_M or None) -> (factor * loss, sums)."""

  def f(inputs, batch, coefficients_M=None):
    targets = losses.batch_targets(batch, model.heads.offsets)
    if coefficients_M is None:
      coefficients_M = losses.offset_coefficients(targets.counts_M, ())
    loss, sums = losses.multi_offset_loss(
      model.apply_head,
      inputs,
      targets,
      coefficients_M,
      HeadContext(Placement.packed(batch["positions"], batch["segments"])),
      mode=mode,
      chunk_tokens=chunk_tokens,
      z_loss=z_loss,
    )
    return factor * loss, sums

  return f


def gradient_of(model, mode, **options):
  return jax.value_and_grad(loss_of(model, mode, **options), has_aux=True)


@pytest.mark.parametrize("kind", KINDS)
def test_loss_is_that_of_a_double_loop(kind, x64):
  model = small_model(kind, dtype="float64")
  inputs = random_inputs(model, 2, 8)
  norm_scale = inputs.shared["scale"]
  # jax.nn.dot_product_attention has its softmax in float32, always.
  rtol = 1e-7 if kind == "block" else 1e-12

  @jax.jit
  def every_way(inputs, batch, coefficients_M):
    args = (inputs, batch, coefficients_M)
    ways = {mode: loss_of(model, mode)(*args) for mode in MODES}
    # Where gradients are asked for, fused is another program.
    ways["fused gradient"] = gradient_of(model, "fused")(*args)[0]
    return ways

  seen = 0
  for name in ROWS:
    batch = batch_of(name)
    hidden_MBTD = [inputs.hidden_BTD]
    for m in range(model.heads.n_extra):
      params = jax.tree.map(lambda leaf, m=m: leaf[m], inputs.per_offset)
      out_BTD = reference.head(
        kind, params, inputs.tap_BTD, batch, model.config
      )
      hidden_MBTD.append(
        reference.rms_norm(norm_scale, out_BTD, model.config.norm_eps)
      )
    nll_M, objective_M, correct_M, count_M = map(
      np.array,
      zip(
        *(
          reference.offset_sums(
            hidden_BTD, inputs.unembedding_DV, batch, offset, z_loss=0.01
          )
          for hidden_BTD, offset in zip(hidden_MBTD, OFFSETS, strict=True)
        ),
        strict=True,
      ),
    )
    seen += correct_M.sum()
    coefficients_M = np.array([1.0, 0.5, 0.7]) / np.maximum(count_M, 1)
    ways = every_way(inputs, batch, coefficients_M)
    for loss, sums in ways.values():
      assert loss.dtype == jnp.float64
      np.testing.assert_allclose(loss, coefficients_M @ objective_M, rtol)
      np.testing.assert_allclose(sums.nll_M, nll_M, rtol)
      np.testing.assert_array_equal(sums.correct_M, correct_M)
      np.testing.assert_array_equal(sums.count_M, count_M)
  assert seen > 0


@pytest.mark.parametrize("kind", KINDS)
def test_modes_agree_in_value_and_every_gradient(kind):
  model = small_model(kind)
  inputs, batch = random_inputs(model, 2, 8), batch_of("packed")

  @jax.jit
  def every_mode(inputs):
    return {mode: gradient_of(model, mode)(inputs, batch) for mode in MODES}

  results = every_mode(inputs)
  (loss, sums), gradients = results.pop("unrolled")
  # Nothing is compared with nothing.
  assert all(np.any(np.asarray(x) != 0) for x in jax.tree.leaves(gradients))
  for (other_loss, other_sums), other_gradients in results.values():
    assert abs(other_loss - loss) <= 1e-6 * abs(loss)
    tiny.assert_close(other_sums, sums, 1e-6)
    tiny.assert_close(other_gradients, gradients, 1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_the_gradient_of_three_times_the_loss_is_three_times_it(mode):
  model = small_model("linear")
  inputs, batch = random_inputs(model, 2, 8), batch_of("holes")
  (loss, _), once = jax.jit(gradient_of(model, mode))(inputs, batch)
  (loss_3, _), thrice = jax.jit(gradient_of(model, mode, factor=3.0))(
    inputs, batch
  )
  np.testing.assert_allclose(loss_3, 3 * loss, rtol=1e-6)
  expected = jax.tree.map(lambda g: 3 * g, once)
  # Squared norms scale with the square.
  expected = expected.replace(probes=9 * once.probes)
  tiny.assert_close(thrice, expected, 1e-6)


@pytest.mark.parametrize("chunk_tokens", [1, 7, 16, 1000])
def test_chunks_need_not_divide_the_tokens(chunk_tokens):
  model = small_model("linear")
  inputs, batch = random_inputs(model, 2, 8), batch_of("packed")
  expected = jax.jit(gradient_of(model, "unrolled"))(inputs, batch)

  @jax.jit
  def both(inputs):
    return [
      gradient_of(model, mode, chunk_tokens=chunk_tokens)(inputs, batch)
      for mode in ("fused", "remat")
    ]

  for result in both(inputs):
    tiny.assert_close(result, expected, 1e-5)


def test_a_vocabulary_and_tokens_that_are_no_multiple_of_the_chunk():
  # V = 3000 with blocks of 2048: a published loss reads 8.550, not 8.302.
  model = small_model("linear", offsets=(1, 2), vocab_size=3000)
  inputs = random_inputs(model, 2, 1100)
  rng = np.random.default_rng(4)
  batch = tiny.pack(rng.integers(0, 3000, (2, 1, 1100)).tolist(), 1100, 3000)

  def mean_nll(hidden_BTD, offset):
    hidden_XD = hidden_BTD[:, :-offset].reshape(-1, 8).astype(np.float64)
    logits_XV = hidden_XD @ inputs.unembedding_DV.astype(np.float64)
    ids_X = batch["tokens"][:, offset:].reshape(-1)
    picked_X = logits_XV[np.arange(len(ids_X)), ids_X]
    return np.mean(np.log(np.sum(np.exp(logits_XV), axis=-1)) - picked_X)

  extra_BTD = reference.rms_norm(
    inputs.shared["scale"],
    inputs.tap_BTD @ inputs.per_offset["map"]["kernel"][0],
    model.config.norm_eps,
  )
  expected = mean_nll(inputs.hidden_BTD, 1) + mean_nll(extra_BTD, 2)
  for mode in ("fused", "remat"):
    f = loss_of(model, mode, chunk_tokens=2048, z_loss=0.0)
    loss, _ = jax.jit(f)(inputs, batch)
    np.testing.assert_allclose(loss, expected, rtol=1e-6)


@pytest.mark.parametrize("mode", ["fused", "remat"])
def test_gradients_agree_with_differences(mode, x64):
  model = small_model("medusa", dtype="float64")
  inputs, batch = random_inputs(model, 2, 8), batch_of("holes")
  f = jax.jit(loss_of(model, mode))

  def loss(differentiable):
    whole = inputs.replace(**differentiable)
    return f(whole, batch)[0]

  names = [x.name for x in dataclasses.fields(inputs) if x.name != "probes"]
  args = {name: getattr(inputs, name) for name in names}
  jax.test_util.check_grads(loss, (args,), order=1, modes=["rev"])


def test_bfloat16_inputs_get_float32_mathematics():
  model = small_model("linear", vocab_size=1000, d_model=64)
  exact = jax.tree.map(jnp.asarray, random_inputs(model, 2, 128))
  rng = np.random.default_rng(4)
  batch = tiny.pack(rng.integers(0, 1000, (2, 1, 128)).tolist(), 128, 1000)
  half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), exact)
  half = half.replace(
    hidden_BTD=half.hidden_BTD * 0.3,
    unembedding_DV=half.unembedding_DV * 0.3,
    probes=exact.probes,
  )

  def cut_head(params, shared, tap_BTD, context):
    # Such that the head itself rounds the same in both computations; XLA
    # would drop a pair of casts.
    del shared, context
    return jax.lax.reduce_precision(tap_BTD * params["map"]["kernel"][0], 8, 7)

  def run(mode, inputs):
    targets = losses.batch_targets(batch, OFFSETS)
    return jax.jit(
      jax.value_and_grad(
        lambda inputs: losses.multi_offset_loss(
          cut_head,
          inputs,
          targets,
          losses.offset_coefficients(targets.counts_M, ()),
          mode=mode,
          chunk_tokens=4,
        ),
        has_aux=True,
      )
    )(inputs)

  wide = jax.tree.map(lambda x: x.astype(jnp.float32), half)
  (loss, sums), gradients = run("unrolled", wide)
  for mode in ("fused", "remat"):
    (other, other_sums), other_gradients = run(mode, half)
    assert other.dtype == jnp.float32
    # Products of bfloat16 are exact in float32: only the order differs.
    assert abs(other - loss) <= 1e-6 * loss
    tiny.assert_close(other_sums, sums, 1e-6)
    # Gradients of logits and results are rounded to bfloat16 (up to 2**-8);
    # the unembedding's, a sum over 64 chunks and 3 offsets, only once.
    for name, bound in [
      ("hidden_BTD", 5e-3),
      ("tap_BTD", 5e-3),
      ("unembedding_DV", 2.5e-3),
    ]:
      got, want = getattr(other_gradients, name), getattr(gradients, name)
      assert got.dtype == jnp.bfloat16
      error = np.linalg.norm(got.astype(jnp.float32) - want)
      assert error <= bound * np.linalg.norm(want), (mode, name)


def test_no_valid_target_is_zero_with_zero_gradients():
  model = small_model("medusa")
  inputs = random_inputs(model, 2, 8)
  step = jax.jit(
    lambda *args: [gradient_of(model, mode)(*args) for mode in MODES]
  )
  for (loss, sums), gradients in step(inputs, batch_of("empty")):
    assert loss == 0
    for leaf in jax.tree.leaves((sums, gradients)):
      np.testing.assert_array_equal(leaf, np.zeros_like(leaf))


def test_heads_without_an_offset_get_no_gradient():
  # As when a model with heads is trained further on offset 1 alone.
  inputs, batch = random_inputs(small_model("linear"), 2, 8), batch_of("packed")
  alone = small_model("linear", offsets=(1,))
  step = jax.jit(
    lambda *args: [gradient_of(alone, mode)(*args) for mode in MODES]
  )
  for _, gradients in step(inputs, batch):
    assert np.any(np.asarray(gradients.hidden_BTD) != 0)
    for leaf in jax.tree.leaves(
      (gradients.per_offset, gradients.tap_BTD, gradients.probes)
    ):
      np.testing.assert_array_equal(leaf, np.zeros_like(leaf))


def test_ids_of_targets_that_do_not_count_change_nothing():
  model = small_model("linear")
  inputs, batch = random_inputs(model, 2, 8), batch_of("holes")
  step = jax.jit(gradient_of(model, "fused"))
  # Hidden states stay, so these ids matter as targets only.
  changed = batch | {
    "tokens": np.where(batch["loss_mask"], batch["tokens"], 10)
  }
  assert np.any(changed["tokens"] != batch["tokens"])
  first, second = step(inputs, batch), step(inputs, changed)
  jax.tree.map(np.testing.assert_array_equal, first, second)
  # Those that count do.
  changed["tokens"] = (batch["tokens"] + 1) % 11
  assert step(inputs, changed)[0][0] != first[0][0]


def test_the_last_prompt_token_alone_learns_a_one_token_answer():
  model = small_model("linear", offsets=(1, 3))
  inputs = random_inputs(model, 1, 8)
  batch = tiny.pack([[[1, 2, 3, 4, 5]]], 8, 11, [[[0, 0, 0, 0, 1]]])
  (_, sums), gradients = jax.jit(gradient_of(model, "fused"))(inputs, batch)
  assert sums.count_M.tolist() == [1, 1]
  for gradient_BTD, row in [(gradients.hidden_BTD, 3), (gradients.tap_BTD, 1)]:
    (learns,) = np.nonzero(np.any(gradient_BTD[0] != 0, axis=-1))
    assert learns.tolist() == [row]


def test_without_differentiation_no_gradient_is_computed():
  model = small_model("linear")
  d, v = model.config.d_model, model.config.vocab_size
  inputs, batch = random_inputs(model, 2, 8), batch_of("packed")

  def is_gradient(shape):
    return shape[-2:] == (d, v)

  evaluation = jax.jit(loss_of(model, "fused")).lower(inputs, batch)
  training = jax.jit(gradient_of(model, "fused")).lower(inputs, batch)
  assert programs.has_dot_of_shape(training.as_text(), is_gradient)
  assert not programs.has_dot_of_shape(evaluation.as_text(), is_gradient)


def test_a_batch_that_does_not_divide_is_one_line():
  model = small_model("linear")
  mesh = parallel.make_mesh(config_lib.Mesh(data=8))
  inputs = random_inputs(model, 2, 8)
  targets = losses.batch_targets(batch_of("packed"), OFFSETS)
  call = functools.partial(
    losses.multi_offset_loss, model.apply_head, inputs, targets, np.ones(3)
  )
  with pytest.raises(ValueError, match="batch: 2 rows do not divide") as error:
    call(mesh=mesh)
  assert "\n" not in str(error.value)
  with pytest.raises(ValueError, match="loss.mode: 'fast'"):
    call(mode="fast")
