"""Work between steps: when it is due, and what happens when it fails."""

import numpy as np
import pytest
import tiny_runs as runs

from mtpjax.jobs import train as train_job
from mtpjax.train import Hook
from mtpjax.train.hooks import run_hooks


@pytest.fixture(scope="module")
def made(tmp_path_factory):
  return runs.prepared(tmp_path_factory.mktemp("hooks"))


@pytest.mark.parametrize(
  "hook, due",
  [
    ({"every": 3}, {3, 6, 7}),
    ({"every": 0}, {7}),
    ({"every": 3, "on_stop": True}, {3, 5, 6, 7}),
  ],
)
def test_a_hook_is_due_when_it_says(hook, due):
  hook = Hook("looking", print, **hook)
  steps = range(1, 8)
  assert {s for s in steps if hook.is_due(s, s == 7, s == 5)} == due


def test_hooks_run_in_order_and_after_one_that_fails():
  ran = []

  def hook(name, fails=False):
    def run(step, state):
      ran.append((name, step, state))
      if fails:
        raise RuntimeError(name)

    return Hook(name, run)

  hooks = [hook("one"), hook("two", fails=True), hook("three")]
  noted = []
  with pytest.raises(RuntimeError, match="two"):
    run_hooks(hooks, 7, "state", noted.append)
  assert noted == ["one", "two", "three"]
  assert ran == [(name, 7, "state") for name in noted]


def test_a_hook_of_a_run_sees_the_state_before_it_is_saved(made, tmp_path):
  seen = {}

  def look(step, state):
    assert step not in runs.saved_steps(tmp_path)
    seen[step] = np.asarray(state.params["lm"]["final_norm"]["scale"])

  train_job.run(made, tmp_path, runs.quiet(), [Hook("looking", look, 10)])
  assert list(seen) == [10, 20]
  saved = runs.saved_state(made, tmp_path, 20)
  np.testing.assert_array_equal(
    seen[20], saved.params["lm"]["final_norm"]["scale"]
  )


def test_the_state_is_saved_though_a_hook_fails(made, tmp_path):
  def fail(step, state):
    raise RuntimeError(f"at {step}")

  with pytest.raises(RuntimeError, match="at 5"):
    train_job.run(made, tmp_path, runs.quiet(), [Hook("failing", fail, 5)])
  assert runs.saved_steps(tmp_path) == [5]
  # Without it the run goes on from there.
  result, text = runs.run(made, tmp_path)
  assert "from step 5" in text and result["step"] == 20
