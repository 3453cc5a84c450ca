"""Heads on a pretrained base: frozen, from states on disk, and jointly."""

import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest
import tiny_runs
import tokenizers
from orbax.checkpoint import v1 as ocp

import mtpjax
from mtpjax import config as config_lib
from mtpjax.checkpoint import Store, WorkDir
from mtpjax.errors import UserError
from mtpjax.evals import make_evaluator
from mtpjax.jobs import prepare


@pytest.fixture(scope="module")
def root(tmp_path_factory):
  """texts/, data/ and base/, a run whose matched heads took layers."""
  folder = tmp_path_factory.mktemp("base")
  made = tiny_runs.prepared(folder)
  made = config_lib.override(
    made, {"model.n_layers": 4, "heads.matched": True, "train.steps": 6}
  )
  tiny_runs.run(made, folder / "base")
  return folder


def on_base(root, **changes):
  """An experiment that says nothing about the model."""
  made = tiny_runs.config(
    root / "data", f"text:{root}/texts/*.txt",
    heads__kind="medusa", heads__tap="normed", heads__offsets="1,2,3",
    base__path=str(root / "base"),
  )  # fmt: skip
  made = dataclasses.replace(made, model=config_lib.Model())
  return config_lib.override(
    made, {path.replace("__", "."): v for path, v in changes.items()}
  )


def saved(workdir):
  """The newest checkpoint as it is stored, and its metadata."""
  store = WorkDir(workdir).checkpoints
  with Store(store) as steps:
    step = steps.latest_step()
    metadata = steps.read_metadata(step)
  return ocp.load(store / str(step), checkpointable_name="state"), metadata


def leaf_names(tree):
  flat, _ = jax.tree_util.tree_flatten_with_path(tree)
  return {jax.tree_util.keystr(p, simple=True, separator="/") for p, _ in flat}


@pytest.fixture(scope="module")
def frozen(root):
  """A run of heads on the frozen base, from beginning to end."""
  result, text = tiny_runs.run(on_base(root), root / "frozen")
  return result, text, mtpjax.load(root / "frozen")


def test_the_frozen_model_is_the_base_and_the_checkpoint_holds_heads_alone(
  root, frozen
):
  base = mtpjax.load(root / "base")
  _, _, loaded = frozen
  assert loaded.config.model.n_layers == base.model.trunk_layers == 2
  tiny_runs.assert_bit_equal(loaded.params["lm"], base.params["lm"])
  state, metadata = saved(root / "frozen")
  assert not [name for name in leaf_names(state) if "/lm/" in name]
  assert [name for name in leaf_names(state["params"]) if "map" in name]
  assert len(metadata["base"]["digest"]) == 64
  # The next-token model is as good as it was, to the bit.
  losses = [
    make_evaluator(
      one.model, one.config.loss, one.open_rows("validation"), 8, 2
    )(one.params)["loss"][0]
    for one in (base, loaded)
  ]
  assert losses[0] == losses[1]


def test_heads_on_a_frozen_model_learn(frozen):
  _, _, loaded = frozen
  lines = tiny_runs.lines(loaded.workdir)
  losses = [line["loss/offset_2"] for line in lines if line["kind"] == "train"]
  assert losses[-1] < losses[0] - 0.2
  assert any(np.any(leaf) for leaf in jax.tree.leaves(loaded.params["heads"]))


def test_resuming_heads_is_bit_exact(root, frozen):
  made = on_base(root)
  with pytest.raises(tiny_runs.Crash):
    tiny_runs.run(made, root / "resumed", crash_at="step     12")
  tiny_runs.run(made, root / "resumed")
  assert tiny_runs.saved_steps(root / "resumed")[-1] == 20
  tiny_runs.assert_bit_equal(
    mtpjax.load(root / "resumed").params, frozen[2].params
  )
  assert tiny_runs.lines(root / "resumed") == tiny_runs.lines(root / "frozen")


def test_training_from_states_on_disk_is_the_same_training(root, frozen):
  made = on_base(root, base__states=str(root / "states"))
  _, text = tiny_runs.run(made, root / "from_states")
  rows = json.loads((root / "states" / "train.json").read_text())["rows"]
  assert f"{rows} of {rows} train rows" in text
  ours = mtpjax.load(root / "from_states").params["heads"]
  for a, b in zip(
    jax.tree.leaves(ours),
    jax.tree.leaves(frozen[2].params["heads"]),
    strict=True,
  ):
    np.testing.assert_allclose(a, b, atol=1e-4 * np.abs(b).max() + 1e-6)
  # A second run, of other heads, takes what is there.
  other = config_lib.override(made, {"heads.offsets": "1,2", "train.steps": 4})
  _, text = tiny_runs.run(other, root / "other")
  assert "base.states:" not in text


def test_states_that_a_killed_run_left_are_completed(root, frozen):
  made = on_base(root, base__states=str(root / "cut"), train__steps=2)
  tiny_runs.run(made, root / "cut_1")
  whole = (root / "cut" / "train.bin").read_bytes()
  note = json.loads((root / "cut" / "train.json").read_text())
  note["rows"] = 9  # in the middle of the second batch of 8
  (root / "cut" / "train.json").write_text(json.dumps(note))
  n = len(whole) // 2
  (root / "cut" / "train.bin").write_bytes(whole[:n] + b"\0" * (len(whole) - n))
  tiny_runs.run(made, root / "cut_2")
  assert (root / "cut" / "train.bin").read_bytes() == whole


def test_states_of_another_run_or_damaged_are_refused(root, frozen):
  states = root / "refused"
  made = on_base(root, base__states=str(states), train__steps=2)
  tiny_runs.run(made, root / "refused_1")
  with pytest.raises(UserError) as error:
    tiny_runs.run(
      config_lib.override(made, {"heads.tap": "last"}), root / "refused_2"
    )
  assert "tap is 'normed' there, 'last' here" in tiny_runs.one_line(error)
  file = states / "train.bin"
  file.write_bytes(file.read_bytes()[:-4])
  with pytest.raises(UserError, match="train.bin is damaged; delete"):
    tiny_runs.run(made, root / "refused_3")
  (states / "train.json").write_text("{")
  with pytest.raises(UserError, match="train.json is damaged; delete"):
    tiny_runs.run(made, root / "refused_3")


def test_a_changed_or_missing_base_is_refused(root):
  made = config_lib.override(
    tiny_runs.config(root / "data", f"text:{root}/texts/*.txt"),
    {"train.steps": 4},
  )
  tiny_runs.run(made, root / "base_2")
  heads = on_base(root, base__path=str(root / "base_2"), train__steps=5)
  tiny_runs.run(heads, root / "heads_2")
  mtpjax.load(root / "heads_2")
  (root / "base_2").rename(root / "base_3")
  # Both moved: it is found next to the run, also to go on.
  (root / "new").mkdir()
  shutil.copytree(root / "base_3", root / "new" / "base_2")
  shutil.copytree(root / "heads_2", root / "new" / "heads_2")
  result, _ = tiny_runs.run(heads, root / "new" / "heads_2")
  assert result["step"] == 5
  shutil.rmtree(root / "new")
  with pytest.raises(UserError) as error:
    mtpjax.load(root / "heads_2")
  assert "base_2' is not there" in tiny_runs.one_line(error)
  # The same step, trained anew with another seed.
  made = config_lib.override(made, {"train.seed": 1})
  tiny_runs.run(made, root / "base_2")
  for attempt in (
    lambda: mtpjax.load(root / "heads_2"),
    lambda: tiny_runs.run(
      config_lib.override(heads, {"train.steps": 8}), root / "heads_2"
    ),
  ):
    with pytest.raises(UserError) as error:
      attempt()
    assert "changed after the heads in" in tiny_runs.one_line(error)
  # Heads without a model of their own are no base.
  with pytest.raises(UserError) as error:
    tiny_runs.run(on_base(root, base__path=str(root / "heads_2")), root / "no")
  assert "without a model of its own" in tiny_runs.one_line(error)


def test_joint_training_waits_and_has_rates_of_its_own(root):
  base = mtpjax.load(root / "base")
  made = on_base(
    root, base__is_trained="true", optim__heads_only_steps=6,
    optim__heads_lr_ratio=4.0, optim__clips_apart="true",
    optim__clip_norm=0.1, train__steps=10, train__keep=10,
  )  # fmt: skip
  tiny_runs.run(made, root / "joint")
  at_5, at_10 = (mtpjax.load(root / "joint", step) for step in (5, 10))
  # Only the heads have learned so far: the model is the base, to the bit.
  tiny_runs.assert_bit_equal(at_5.params["lm"], base.params["lm"])
  assert np.any(np.asarray(at_5.params["heads"]["map"]["kernel"]))
  different = [
    np.any(np.asarray(a) != np.asarray(b))
    for a, b in zip(
      jax.tree.leaves(at_10.params["lm"]),
      jax.tree.leaves(base.params["lm"]),
      strict=True,
    )
  ]
  assert all(different)
  # It stands without its base.
  assert "lm" in saved(root / "joint")[0]["params"]


@pytest.mark.parametrize(
  "changes, reason",
  [
    ({"model.d_model": 32}, "model.d_model: 32 differs from base.path"),
    ({"heads.matched": True}, "would take layers from base.path"),
    ({"heads.offsets": "1"}, "leaves nothing to train on a base"),
    ({"base.path": "", "base.states": "x"}, "needs a base that is frozen"),
    ({"base.path": "", "base.is_trained": "true"}, "needs a base"),
    ({"base.path": "", "loss.targets": "teacher_soft"},
     "needs a pretrained teacher"),
    ({"base.states": "x", "heads.tap": "before_last"}, "after the last layer"),
    ({"loss.targets": "labls"}, "is not one of labels"),
    ({"optim.heads_only_steps": 37}, "leave nothing of optim.decay_steps"),
    ({"base.path": "nowhere"}, "'nowhere' is not there"),
  ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_by_name(root, changes, reason):
  with pytest.raises(UserError) as error:
    made = config_lib.override(on_base(root), changes)
    tiny_runs.run(made, root / "senseless")
  assert reason in tiny_runs.one_line(error)
  assert not (root / "senseless").exists()


def test_a_tokenizer_of_another_vocabulary_is_refused(root, tmp_path):
  model = tokenizers.models.BPE({"1": 0, "</s>": 1}, [])
  own = tokenizers.Tokenizer(model)
  own.add_special_tokens(["</s>"])
  own.save(str(tmp_path / "tokenizer.json"))
  made = on_base(
    root, data__tokenizer=str(tmp_path / "tokenizer.json"),
    data__path=str(tmp_path / "data"), data__add_bos="false",
  )  # fmt: skip
  prepare.run(made, tiny_runs.quiet())
  with pytest.raises(UserError) as error:
    tiny_runs.run(made, tmp_path / "run")
  line = tiny_runs.one_line(error)
  assert "is not the tokenizer of base.path" in line
  assert "vocabulary of 2 and 258" in line
