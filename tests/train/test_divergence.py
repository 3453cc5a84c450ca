"""A step that is not finite changes nothing, ends the run, and is not saved."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_runs as runs

from mtpjax import config as config_lib
from mtpjax.errors import UserError
from mtpjax.train import make_train_step, program
from mtpjax.train.loop import _ways_out


@pytest.fixture(scope="module")
def made(tmp_path_factory):
  return runs.prepared(tmp_path_factory.mktemp("divergence"))


def poison(params, where):
  bad = jax.tree.map(jnp.array, params)
  bad[where]["layers" if where == "lm" else "layer"]["mlp"]["up"]["kernel"] *= (
    jnp.nan
  )
  return bad


@pytest.mark.parametrize(
  "where, named", [("heads", "loss of offset 2, 3"),
                   ("lm", "loss of offset 1, 2, 3")]
)  # fmt: skip
def test_the_run_ends_with_one_line_and_the_last_good_checkpoint(
  made, tmp_path, monkeypatch, where, named
):
  reached = []

  def breaks_at_7(*args, **options):
    step = make_train_step(*args, **options)

    def wrapped(state, batch):
      if int(state.step) == 6:
        state = state.replace(params=poison(state.params, where))
        before = jax.device_get(state)
        after, metrics = step(state, batch)
        # The state, its counters and moments included, is the one before.
        runs.assert_bit_equal(jax.device_get(after), before)
        assert not metrics.is_finite
        reached.append(7)
        return after, metrics
      return step(state, batch)

    return wrapped

  monkeypatch.setattr(program, "make_train_step", breaks_at_7)
  with pytest.raises(UserError) as error:
    runs.run(made, tmp_path)
  text = runs.one_line(error)
  assert text.startswith("step 7: the ") and named in text
  for hint in ("metrics.jsonl", "--optim.peak-lr", "learning rate"):
    assert hint in text
  assert "dtype" not in text  # the run is in float32 as it is
  assert reached[0] == 7
  assert runs.saved_steps(tmp_path) == [5]
  state = runs.saved_state(made, tmp_path)
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))
  assert max(line["step"] for line in runs.lines(tmp_path)) == 6
  # With the fault gone the run goes on.
  monkeypatch.setattr(program, "make_train_step", make_train_step)
  if where == "lm":
    result, printed = runs.run(made, tmp_path)
    assert "from step 5" in printed and result["step"] == 20


def test_advice_is_what_this_run_could_do():
  def advice(**model):
    return _ways_out(config_lib.Config(model=config_lib.Model(**model)))

  assert "--model.dtype float32" in advice(dtype="bfloat16")
  assert "dtype" not in advice(dtype="float32")
  text = advice(dtype="float32", param_dtype="bfloat16")
  assert text.endswith("or try --model.param-dtype float32")


def test_a_bad_step_just_before_a_save_is_not_saved(
  made, tmp_path, monkeypatch
):
  def breaks_at_10(*args, **options):
    step = make_train_step(*args, **options)

    def wrapped(state, batch):
      if int(state.step) == 9:
        state = state.replace(params=poison(state.params, "heads"))
      return step(state, batch)

    return wrapped

  monkeypatch.setattr(program, "make_train_step", breaks_at_10)
  with pytest.raises(UserError, match="^step 10: .* is step 5"):
    runs.run(made, tmp_path)
  # The steps that led there are written, though their window was open.
  assert runs.lines(tmp_path)[-1]["step"] == 9
  assert runs.saved_steps(tmp_path) == [5]
