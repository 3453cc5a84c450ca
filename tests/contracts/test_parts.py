"""A part of the parameters beside "lm" and "heads": a toy from here."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny

from mtpjax import config as config_lib
from mtpjax import decode, parallel
from mtpjax.checkpoint import Store
from mtpjax.heads import MultiTokenModel, Part, Trained
from mtpjax.losses import batch_targets, model_loss, offset_coefficients
from mtpjax.train import Program, make_schedule


def init(key, model):
  """One scale per width, near 0, cut over the mesh as norms are."""
  values_D = 0.01 * jax.random.normal(key, (model.config.d_model,))
  return {"scale": parallel.Logical(values_D, ("norm",))}


SCALE = Part("adapter", init)


def with_scale(params):
  """The trunk whose final norm the adapter adds to."""
  norm = params["lm"]["final_norm"]
  norm = norm | {"scale": norm["scale"] + params["adapter"]["scale"]}
  return params | {"lm": params["lm"] | {"final_norm": norm}}


def objective(model, loss, params, probes_M, batch, coefficients_M, trained,
              **options):  # fmt: skip
  # What learns is inside of the trunk, which must not be cut off from it.
  del trained
  return model_loss(
    model, loss, with_scale(params), probes_M, batch, coefficients_M, **options
  )


def experiment():
  return config_lib.Config(
    model=tiny.model_config(),
    heads=config_lib.Heads(offsets=(1, 2), matched=False),
    loss=config_lib.Loss(chunk_tokens=16),
    optim=config_lib.Optim(
      peak_lr=1e-2,
      warmup_steps=1,
      decay_steps=10,
      clip_norm=0,
      heads_lr_ratio=2.0,
    ),
    train=config_lib.Train(batch_size=4),
  )


def rows():
  rng = np.random.default_rng(0)
  texts = [[rng.integers(1, 248, 16).tolist()] for _ in range(4)]
  return jax.tree.map(jnp.asarray, tiny.pack(texts, 16))


def test_a_third_part_learns_alone_and_is_saved_and_restored(tmp_path):
  config, batch = experiment(), rows()
  mesh = parallel.make_mesh(config_lib.Mesh(data=2, fsdp=2, model=2))
  program = Program.build(config, mesh, Trained((SCALE.name,)), (SCALE,))
  model = program.model
  frozen = MultiTokenModel(config.model, config.heads, mesh).init(
    jax.random.key(1)
  )
  assert jax.tree.structure(program.abstract_frozen()) == jax.tree.structure(
    frozen
  )
  state = program.create_state(frozen)
  assert list(state.params) == [SCALE.name]
  first = jax.device_get(state)
  step = program.step(frozen, objective)
  state, metrics = step(state, parallel.place_batch(batch, mesh))

  # The same gradient from the whole loss, and the optimizer by hand.
  whole = jax.device_get(frozen)

  def loss_of(adapter):
    counts_M = batch_targets(batch, config.heads.offsets).counts_M
    return model_loss(
      tiny.multi_token_model(heads_config=config.heads), config.loss,
      with_scale(whole | {SCALE.name: adapter}), jnp.zeros(2), batch,
      offset_coefficients(counts_M, ()),
    )[0]  # fmt: skip

  value, grads = jax.jit(jax.value_and_grad(loss_of))(first.params[SCALE.name])
  tiny.assert_close(metrics.loss, value, 1e-6)
  tiny.assert_close(metrics.grad_norm, optax.tree.norm(grads), 1e-5)
  state, later = step(state, parallel.place_batch(batch, mesh))
  assert later.loss == metrics.loss  # warm-up begins with a rate of 0
  state, later = step(state, parallel.place_batch(batch, mesh))
  assert later.loss < metrics.loss
  # The rate that is reported is the one it learns at, twice the model's.
  rate = make_schedule(config.optim, of_heads=True)(2)
  assert float(later.learning_rate) == pytest.approx(float(rate))

  with Store(tmp_path / "checkpoints") as store:
    store.save(3, state, {"step": 3}, log=print)
    store.wait()
    again, _ = store.restore(program.abstract_state())
  for ours, theirs in zip(
    jax.tree.leaves(state), jax.tree.leaves(again), strict=True
  ):
    np.testing.assert_array_equal(ours, theirs)
  carried = decode.decode_params(model, frozen | again.params)
  np.testing.assert_array_equal(
    carried[SCALE.name]["scale"], state.params[SCALE.name]["scale"]
  )


def test_other_parts_begin_as_they_would_without_it():
  config = experiment()
  mesh = parallel.single_device_mesh()
  plain = MultiTokenModel(config.model, config.heads, mesh)
  more = MultiTokenModel(config.model, config.heads, mesh, parts=(SCALE,))
  ours, theirs = (m.init(jax.random.key(3)) for m in (plain, more))
  assert np.asarray(theirs.pop(SCALE.name)["scale"]).std() > 0
  for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
    np.testing.assert_array_equal(a, b)


def test_parts_begin_with_values_of_their_own():
  config = experiment()
  mesh = parallel.single_device_mesh()
  both = (SCALE, Part("another", init))
  params = MultiTokenModel(config.model, config.heads, mesh, parts=both).init(
    jax.random.key(3)
  )
  assert np.all(params[SCALE.name]["scale"] != params["another"]["scale"])
