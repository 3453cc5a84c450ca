"""A run that is stopped and started again is the run that never stopped."""

import os
import shutil
import signal
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest
import tiny_runs as runs

import mtpjax
from mtpjax import config as config_lib
from mtpjax import data
from mtpjax.checkpoint import WorkDir
from mtpjax.errors import UserError
from mtpjax.jobs import prepare
from mtpjax.jobs import train as train_job


@pytest.fixture(scope="module")
def made(tmp_path_factory):
  return runs.prepared(tmp_path_factory.mktemp("resume"))


@pytest.fixture(scope="module")
def straight(made, tmp_path_factory):
  """A work directory of 20 steps without a stop."""
  workdir = tmp_path_factory.mktemp("straight")
  result, _ = runs.run(made, workdir)
  assert result["step"] == 20
  return workdir


def assert_same_run(made, workdir, straight):
  runs.assert_bit_equal(
    runs.saved_state(made, workdir), runs.saved_state(made, straight)
  )
  assert runs.lines(workdir) == runs.lines(straight)


def test_a_run_logs_evaluates_and_saves_when_it_should(made, straight):
  steps = [(line["step"], line["kind"]) for line in runs.lines(straight)]
  # Windows end at even steps and, so that a resume writes the same, at saves.
  train = sorted({*range(2, 21, 2), 5, 15})
  assert [s for s, kind in steps if kind == "train"] == train
  assert [s for s, kind in steps if kind == "eval"] == [10, 20]
  assert runs.saved_steps(straight) == [10, 15, 20]  # three are kept
  assert int(runs.saved_state(made, straight).step) == 20


def test_a_crash_is_made_up_for_bit_by_bit(
  made, straight, tmp_path, monkeypatch
):
  seen = []
  iterate = data.Loader.iterate

  def recorded(self, start):
    seen.append(start)
    return iterate(self, start)

  monkeypatch.setattr(data.Loader, "iterate", recorded)
  with pytest.raises(runs.Crash):
    runs.run(made, tmp_path, crash_at="step      8  train")
  assert runs.saved_steps(tmp_path) == [5]
  assert [line["step"] for line in runs.lines(tmp_path)] == [2, 4, 5, 6, 8]
  with pytest.raises(runs.Crash):
    runs.run(made, tmp_path, crash_at="step     14  train")
  _, text = runs.run(made, tmp_path)
  assert "from step 10" in text
  assert seen == [0, 5, 10]
  assert_same_run(made, tmp_path, straight)


CHILD = """
import os, signal, sys
import rich.console
from mtpjax import cli

number, place = int(sys.argv[1]), sys.argv[2]
write = rich.console.Console.print

def noted(self, *objects, **options):
  write(self, *objects, **options)
  if objects and str(objects[0]).startswith(place):
    os.kill(os.getpid(), number)

rich.console.Console.print = noted
sys.exit(cli.main(sys.argv[3:]))
"""


def run_child(made, folder, workdir, number, place):
  """Runs the command line, which sends itself a signal at a line's end."""
  folder.mkdir(exist_ok=True)
  made.save(folder / "config.json")
  (folder / "experiment.py").write_text(
    "import pathlib\n"
    "from mtpjax.config import load_config\n"
    "def config():\n"
    "  return load_config(pathlib.Path(__file__).parent / 'config.json')\n"
  )
  return subprocess.run(
    [sys.executable, "-c", CHILD, str(int(number)), place, "train",
     str(folder / "experiment.py"), "--workdir", str(workdir)],
    capture_output=True,
    text=True,
    env=os.environ | {"COLUMNS": "200"},
  )  # fmt: skip


def test_a_killed_process_leaves_a_run_that_goes_on(made, straight, tmp_path):
  workdir = tmp_path / "run"
  child = run_child(
    made, tmp_path / "exp", workdir, signal.SIGKILL, "step     12  train"
  )
  assert child.returncode == -signal.SIGKILL, child.stderr
  assert runs.lines(workdir)[-1]["step"] == 12
  assert max(runs.saved_steps(workdir)) in (5, 10)  # 10 may be half written
  with (workdir / "metrics.jsonl").open("a") as file:
    file.write('{"step": 13, "ki')  # as a kill may leave it
  _, text = runs.run(made, workdir)
  assert "resuming" in text
  assert_same_run(made, workdir, straight)


@pytest.mark.parametrize(
  "number, status", [(signal.SIGTERM, 0), (signal.SIGINT, 130)]
)
def test_a_signal_saves_and_says_so(made, straight, tmp_path, number, status):
  workdir = tmp_path / "run"
  child = run_child(
    made, tmp_path / "exp", workdir, number, "step      8  train"
  )
  assert child.returncode == status, child.stderr
  (step,) = set(runs.saved_steps(workdir)) - {5}
  assert 8 <= step <= 10
  assert f"stopped at step {step}, saved" in child.stdout
  assert "Traceback" not in child.stderr
  _, text = runs.run(made, workdir)
  assert f"from step {step}" in text
  runs.assert_bit_equal(
    runs.saved_state(made, workdir), runs.saved_state(made, straight)
  )
  # A stop cuts a window of training in two, but evaluates nothing of its own.
  assert [line for line in runs.lines(workdir) if line["kind"] == "eval"] == [
    line for line in runs.lines(straight) if line["kind"] == "eval"
  ]


def test_a_finished_run_has_nothing_to_do(made, straight):
  before = {
    p: p.read_bytes() for p in straight.rglob("*") if p.is_file()
  }  # fmt: skip
  result, text = runs.run(made, straight)
  assert "is at step 20 of 20: nothing to do; raise --train.steps" in text
  assert result["step"] == 20
  assert before == {
    p: p.read_bytes() for p in straight.rglob("*") if p.is_file()
  }


def test_another_runs_directory_is_refused_with_every_difference(
  made, straight
):
  other = config_lib.override(
    made,
    {"optim.peak_lr": 0.5, "heads.offsets": (1, 2), "train.seed": 3,
     "train.steps": 99, "train.log_every": 7, "loss.mode": "remat",
     "mesh.data": 2},
  )  # fmt: skip
  with pytest.raises(UserError) as error:
    runs.run(other, straight)
  text = runs.one_line(error)
  assert "optim.peak_lr is 0.01 there, 0.5 here" in text
  assert "heads.offsets is (1, 2, 3) there, (1, 2) here" in text
  assert "train.seed is 0 there, 3 here" in text
  for may_change in ("steps", "log_every", "mode", "mesh"):
    assert may_change not in text
  # Nothing was changed by asking.
  assert config_lib.load_config(straight / "config.json").train.steps == 20


def test_another_runs_checkpoints_are_refused(made, straight, tmp_path):
  """By what was saved with them, whatever config.json says or lacks."""
  run = tmp_path / "run"
  shutil.copytree(straight, run)
  (run / "config.json").unlink()
  other = config_lib.override(made, {"optim.peak_lr": 0.5, "train.steps": 30})
  with pytest.raises(UserError) as error:
    runs.run(other, run)
  assert "optim.peak_lr is 0.01 there, 0.5 here" in runs.one_line(error)
  # Now config.json is that of the other run, and loading is refused too.
  with pytest.raises(UserError) as error:
    mtpjax.load(run)
  assert "optim.peak_lr" in runs.one_line(error)


def test_an_offset_without_targets_is_warned_of(tmp_path):
  texts = tmp_path / "texts"
  texts.mkdir()
  for i in range(20):
    (texts / f"{i}.txt").write_text("abcdefghij"[i % 10])
  # BOS, a letter, EOS: nothing is three tokens ahead of anything.
  made = runs.config(tmp_path / "data", f"text:{texts}/*.txt", train__steps=2)
  prepare.run(made, runs.quiet())
  _, text = runs.run(made, tmp_path / "run")
  assert "WARNING: step 2: no valid target at offset 3" in text
  assert "offset 2 since" not in text
  [line] = [x for x in runs.lines(tmp_path / "run") if x["kind"] == "train"]
  # What there is none of is not 0.000, in the files or on the console.
  assert line["targets/offset_3"] == line["tap_grad_norm/offset_3"] == 0
  for one in runs.lines(tmp_path / "run"):
    assert "loss/offset_3" not in one and "accuracy/offset_3" not in one
  assert line["loss"] == pytest.approx(
    line["loss/offset_1"] + line["loss/offset_2"]
  )
  shown = [row for row in text.splitlines() if row.startswith("step ")]
  assert [row.count(" none") for row in shown] == [2, 2]
  assert (
    "WARNING: step 2: no valid target at offset 3 in the evaluation" in text
  )


def test_other_text_under_the_same_path_is_refused(made, straight, tmp_path):
  other = runs.prepared(tmp_path)
  renamed = config_lib.override(
    made, {"data.path": other.data.path, "data.sources": other.data.sources}
  )
  # Only the place of the text differs, which is a difference in its names.
  with pytest.raises(UserError) as error:
    runs.run(renamed, straight)
  text = runs.one_line(error)
  assert "data.sources" in text and "data fingerprint" in text


def test_refusals_before_anything_is_made(made, tmp_path):
  def refused(**changes):
    other = config_lib.override(
      made, {path.replace("__", "."): v for path, v in changes.items()}
    )
    with pytest.raises(UserError) as error:
      train_job.run(other, tmp_path / "new", runs.quiet())
    assert not (tmp_path / "new").exists()
    return runs.one_line(error)

  text = refused(data__path=str(tmp_path / "none"))
  assert "no prepared data there" in text and "mtpjax prepare" in text
  text = refused(data__row_length=32)
  assert "row_length 16, not 32" in text and "--data.path" in text
  assert "add_bos True, not False" in refused(data__add_bos=False)
  assert "seed 0, not 5" in refused(data__seed=5)
  text = refused(data__sources=("text:elsewhere/*",))
  assert "not text:elsewhere/*" in text
  text = refused(mesh__data=2, train__batch_size=7)
  assert text.startswith("train.batch_size") and "7 rows" in text
  text = refused(mesh__data=4, train__accumulation=4)
  assert "2 rows do not divide over data x fsdp = 4" in text
  text = refused(mesh__data=16, train__batch_size=16)
  assert text.startswith("mesh: ") and "16 devices, 8 are here" in text
  text = refused(model__vocab_size=257)
  assert "257 is less than the tokenizer's 258" in text


def test_a_start_that_failed_can_be_corrected(made, tmp_path):
  workdir = tmp_path / "run"
  wrong = config_lib.override(made, {"train.seed": -1, "optim.peak_lr": 0.5})
  with pytest.raises(UserError, match="train.seed"):
    runs.run(wrong, workdir)
  # What another start might leave, up to the moment of the first save.
  (workdir / "metrics.jsonl").write_text('{"step": 0, "kind": "eval"}\n')
  (workdir / "chat_template.jinja").write_text("of another tokenizer")
  (workdir / "checkpoints" / "5.orbax-checkpoint-tmp").mkdir(parents=True)
  (workdir / "notes.txt").write_text("mine")
  one = config_lib.override(
    made,
    {"train.steps": 1, "train.batch_size": 1, "train.eval_every": 0},
  )
  result, _ = runs.run(one, workdir)  # a batch of one row, too
  assert result["step"] == 1
  assert [line["step"] for line in runs.lines(workdir)] == [1]
  assert sorted(p.name for p in workdir.iterdir()) == [
    "checkpoints", "config.json", "data.json", "metrics.jsonl", "notes.txt",
  ]  # fmt: skip
  # With a checkpoint it is a run, even if only a damaged one.
  (workdir / "checkpoints" / "1").rename(
    workdir / "checkpoints" / "1.damaged-1"
  )
  with pytest.raises(UserError, match="holds another run"):
    runs.run(made, workdir)


@pytest.mark.parametrize("is_link", [False, True])
def test_a_run_whose_checkpoints_were_moved_is_no_failed_start(
  made, straight, tmp_path, is_link
):
  workdir = tmp_path / "run"
  shutil.copytree(straight, workdir)
  shutil.rmtree(workdir / "checkpoints")
  if is_link:  # of a disk that is not mounted
    (workdir / "checkpoints").symlink_to(tmp_path / "disk")
    (workdir / "metrics.jsonl").write_text("")
  before = {p.name: p.read_bytes() for p in workdir.iterdir() if p.is_file()}
  other = config_lib.override(made, {"optim.peak_lr": 0.5})
  with pytest.raises(UserError, match="holds another run: optim.peak_lr"):
    runs.run(other, workdir)
  assert before == {
    p.name: p.read_bytes() for p in workdir.iterdir() if p.is_file()
  }


def test_another_programs_folder_is_no_failed_start(made, tmp_path):
  (tmp_path / "config.json").write_text('{"architectures": ["Llama"]}')
  (tmp_path / "tokenizer.json").write_text("theirs")
  with pytest.raises(UserError):
    runs.run(made, tmp_path)
  assert (tmp_path / "tokenizer.json").read_text() == "theirs"
  assert "architectures" in (tmp_path / "config.json").read_text()


def test_two_runs_do_not_share_a_work_directory(made, straight):
  place = WorkDir(straight)
  longer = config_lib.override(made, {"train.steps": 30})
  with place.hold(pytest.fail):
    with pytest.raises(UserError) as error:
      runs.run(longer, straight)
    runs.saved_state(made, straight)  # a reader is not asked
  text = runs.one_line(error)
  assert f"in use by process {os.getpid()} on {socket.gethostname()}" in text
  assert "since 2" in text and "take another directory" in text
  assert config_lib.load_config(place.config).train.steps == 20
  assert not (straight / "lock").exists()


def test_a_file_where_the_work_directory_must_be(made, tmp_path):
  (tmp_path / "file").write_text("")
  for path in (tmp_path / "file", tmp_path / "file" / "run"):
    with pytest.raises(UserError) as error:
      runs.run(made, path)
    assert f"work directory {path}: cannot be made" in runs.one_line(error)


def test_the_start_says_where_on_what_and_how_much(made, straight, tmp_path):
  short = config_lib.override(
    made, {"train.steps": 1, "train.eval_every": 0, "mesh.data": 2}
  )
  _, text = runs.run(short, tmp_path / "run")
  split = data.load_fingerprint(made.data.path)["splits"]["train"]
  assert "2 cpu devices, mesh data 2 x fsdp 1 x model 1" in text
  assert (
    f"data {made.data.path}: {split['rows']:,} rows of 16, "
    f"{split['tokens']:,} tokens; 128 tokens per step"
  ) in text
  assert "WARNING" not in text


def test_steps_beyond_the_schedule_are_said_and_it_can_be_stretched(
  made, tmp_path
):
  short = config_lib.override(
    made, {"train.steps": 4, "optim.decay_steps": 4, "train.eval_every": 0}
  )
  _, text = runs.run(short, tmp_path)
  assert "WARNING" not in text
  longer = config_lib.override(short, {"train.steps": 5})
  _, text = runs.run(longer, tmp_path)
  assert (
    "WARNING: the schedule ends at optim.decay_steps = 4, before train.steps = "
    "5: steps 5 to 5 run at its last learning rate, 0.001 (0.1 of the peak); "
    "to stretch it, give --optim.decay-steps 5"
  ) in text
  stretched = config_lib.override(
    longer, {"train.steps": 6, "optim.decay_steps": 40}
  )
  _, text = runs.run(stretched, tmp_path)
  # Step 5 of a cosine from step 3 to step 40, from 0.01 to 0.001.
  rate = 0.001 + 0.009 * (1 + np.cos(np.pi * 2 / 37)) / 2
  assert (
    "optim.decay_steps is 40 and was 4: at step 5 the learning rate changes "
    f"from 0.001 to {rate:.3g}"
  ) in text
  assert "WARNING" not in text
  assert runs.lines(tmp_path)[-1]["learning_rate"] == pytest.approx(rate)


@pytest.fixture(scope="module")
def by_mesh(made, tmp_path_factory):
  """Lines of six steps on one device, and of three and three on two meshes."""
  folder = tmp_path_factory.mktemp("meshes")
  each = config_lib.override(
    made, {"train.log_every": 1, "train.eval_every": 0}
  )
  three = config_lib.override(each, {"train.steps": 3})
  six = config_lib.override(each, {"train.steps": 6})
  runs.run(six, folder / "one")
  on_eight = config_lib.override(
    three, {"mesh.data": 2, "mesh.fsdp": 2, "mesh.model": 2}
  )
  runs.run(on_eight, folder / "eight")
  _, text = runs.run(six, folder / "eight")
  assert "from step 3" in text
  return runs.lines(folder / "one"), runs.lines(folder / "eight")


def test_meshes_agree_and_a_run_moves_from_one_to_another(by_mesh):
  one, eight = by_mesh
  assert [line["step"] for line in eight] == list(range(1, 7))
  for a, b in zip(one, eight, strict=True):
    assert a.keys() == b.keys()
    for name in a:
      if name.startswith("loss") or "norm" in name:
        assert a[name] == pytest.approx(b[name], rel=1e-5), (name, a["step"])
      if name.startswith("targets"):
        assert a[name] == b[name]
  assert one[0]["loss"] > one[-1]["loss"] * 1.01


def test_the_state_is_created_cut_over_fsdp_and_model(made):
  from mtpjax import parallel
  from mtpjax.train import create_state

  mesh = parallel.make_mesh(config_lib.Mesh(2, 2, 2))
  model, optimizer = runs.parts(made, mesh)
  state = create_state(model, optimizer, jax.random.key(0))
  adam = state.opt_state[1][0]
  for tree in (state.params, adam.mu, adam.nu):
    kernel = tree["lm"]["layers"]["mlp"]["up"]["kernel"]  # [L, D, F]
    assert kernel.addressable_shards[0].data.shape == (2, 8, 8)
    kernel = tree["heads"]["layer"]["attention"]["query"]["kernel"]
    assert kernel.addressable_shards[0].data.shape == (2, 8, 1, 4)
    embedding = tree["lm"]["embedding"]  # [V, D]
    assert embedding.addressable_shards[0].data.shape == (129, 8)
  # The same numbers as on one device.
  alone = create_state(*runs.parts(made), jax.random.key(0))
  for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(alone), strict=True):
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)
