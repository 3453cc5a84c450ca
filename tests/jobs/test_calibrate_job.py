"""`mtpjax calibrate`, and `--mode auto`, which goes by it."""

import dataclasses
import json
import shutil
import types

import pytest

import mtpjax
from mtpjax import cli, decode
from mtpjax import config as config_lib
from mtpjax.budget import Calibration, Choice, Entry, Level, PassCosts
from mtpjax.checkpoint import WorkDir
from mtpjax.config import Heads
from mtpjax.evals import calibration as calibrating
from mtpjax.evals.calibration import Calibrator, Ranked, Texts

WORKDIR = "runs/quickstart"
SHORT = "--texts 4 --prompt-length 8 --new-tokens 16 --max-nodes 5 --repeats 1"
PROMPTS = ["def f1(x", "return", "x + "]


@pytest.fixture(scope="module")
def calibrated(tiny_root, tmp_path_factory):
  """A work directory with a calibration, apart from that of other tests."""
  root = tmp_path_factory.mktemp("calibrated")
  with pytest.MonkeyPatch.context() as patch:
    patch.chdir(tiny_root)
    shutil.copytree(WORKDIR, root / "run")
    argv = ["calibrate", str(root / "run"), *SHORT.split()]
    argv += ["--batches", "1,2", "--temperatures", "0,0.8"]
    # One length of each drafter will do: each is a program.
    for name, mode in decode.MODES.items():
      one = dataclasses.replace(mode, lengths_tried=mode.lengths_tried[:1])
      patch.setitem(decode.MODES, name, one)
    assert cli.main([*argv, "--json", str(root / "report.json")]) == 0
  return root


def test_a_report_holds_costs_choice_and_checks(calibrated):
  report = json.loads((calibrated / "report.json").read_text())
  assert {"jax", "mtpjax"} <= set(report["versions"])
  rows = report["rows"]
  assert [(r["temperature"], r["batch"]) for r in rows] == [
    (0, 1), (0, 2), (0.8, 1), (0.8, 2)
  ]  # fmt: skip
  for row in rows:
    assert [c["nodes"] for c in row["curve"]] == list(range(1, 6))
    gains = [c["tokens_per_pass"] for c in row["curve"]]
    assert gains[0] == 1 and gains == sorted(gains)
    names = [check["tree"] for check in row["checks"]]
    assert names[0] == "chain" and names[-1] == "chosen"
    for check in row["checks"]:
      assert check["measured"] >= 1 and check["predicted"] >= 1
  # What is predicted does not depend on how many rows share a pass.
  for a, b in ((0, 1), (2, 3)):
    assert [c["predicted"] for c in rows[a]["checks"][:-1]] == [
      c["predicted"] for c in rows[b]["checks"][:-1]
    ]


def test_it_is_saved_beside_the_checkpoints_with_a_figure(calibrated):
  loaded = Calibration.load(calibrated / "run" / "calibration.json")
  assert [(e.temperature, e.batch) for e in loaded.entries] == [
    (0, 1), (0, 2), (0.8, 1), (0.8, 2)
  ]  # fmt: skip
  for entry in loaded.entries:
    assert [nodes for nodes, _ in entry.costs.points] == [1, 2, 4]
    assert entry.levels[0].tree == decode.Tree.root()
    assert entry.levels[-1].tree == entry.choice.tree
  png = (calibrated / "run" / "calibration.png").read_bytes()
  assert png.startswith(b"\x89PNG") and len(png) > 10_000


def rewrite(path, levels):
  """Puts other levels into every entry, as if they had been measured."""
  calibration = Calibration.load(path)
  entries = tuple(
    dataclasses.replace(entry, levels=levels) for entry in calibration.entries
  )
  dataclasses.replace(calibration, entries=entries).save(path, {})


PLAIN = Level(decode.Tree.root(), 1.0, 1.0)
TREE = Level(decode.Tree.from_branching((3, 2)), 2.0, 1.0)
LEVELS = {
  "plain": (PLAIN,),
  "tree": (PLAIN, TREE),
  "three": (
    PLAIN,
    Level(decode.Tree.chain(1), 1.3, 1.1),
    Level(decode.Tree.from_branching((3, 2)), 2.0, 1.2),
  ),
}


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("name", LEVELS)
def test_auto_says_what_plain_decoding_says(
  calibrated, tiny_root, monkeypatch, tmp_path, name, temperature
):
  monkeypatch.chdir(tiny_root)
  shutil.copytree(calibrated / "run", tmp_path / "run")
  rewrite(tmp_path / "run" / "calibration.json", LEVELS[name])
  model = mtpjax.load(tmp_path / "run")
  settings = dict(
    max_new_tokens=40, ignore_eos=True, temperature=temperature, seed=4,
    chunk_passes=2, batch_size=2,
  )  # fmt: skip
  plain = model.generate(PROMPTS, mode="next", **settings)
  auto = model.generate(PROMPTS, mode="auto", **settings)
  assert [g.ids for g in auto] == [g.ids for g in plain]
  proposed = sum(g.proposed for g in auto)
  assert (proposed == 0) == (name == "plain")


def test_auto_without_a_sound_calibration_of_this_device_is_one_line(
  calibrated, tiny_root, monkeypatch, tmp_path, fails
):
  monkeypatch.chdir(tiny_root)
  argv = ["--prompt", "a", "--mode", "auto", "--max-new-tokens", "2"]
  line = fails("generate", WORKDIR, *argv)
  assert "calibration.json" in line and "mtpjax calibrate" in line
  shutil.copytree(calibrated / "run", tmp_path / "run")
  path = tmp_path / "run" / "calibration.json"
  whole = json.loads(path.read_text())
  path.write_text(json.dumps(whole | {"device": "tpu v9"}))
  assert "tpu v9" in fails("generate", tmp_path / "run", *argv)
  path.write_text(json.dumps(whole)[:100])
  assert "damaged" in fails("generate", tmp_path / "run", *argv)
  del whole["entries"][0]["levels"]
  path.write_text(json.dumps(whole))
  assert "damaged" in fails("generate", tmp_path / "run", *argv)


def damage(values, path, change):
  """Changes one value of a calibration: `path` leads to it."""
  values = json.loads(json.dumps(values))
  at = values
  for key in path[:-1]:
    at = at[key]
  at[path[-1]] = change(at[path[-1]])
  return values


@pytest.mark.parametrize(
  "path, change, words",
  [
    (["entries"], lambda _: [], "has no entries"),
    (["entries"], lambda _: "many", "TypeError"),
    (["entries", 1, "levels"], lambda _: [], "levels must be there"),
    (["entries", 1, "levels"], lambda _: [TREE.to_dict()], "plain decoding"),
    (["entries", 0, "levels"], lambda old: [TREE.to_dict(), *old], "plain"),
    (["entries", 0, "batch"], lambda _: 0, "batch 0"),
    (["entries", 0, "temperature"], lambda _: -1, "temperature -1.0"),
    (["entries", 0, "temperature"], lambda _: float("nan"), "temperature nan"),
    (["step"], lambda _: float("inf"), "OverflowError"),
    (["step"], lambda _: None, "TypeError"),
  ],
)
def test_a_damaged_calibration_is_one_line(
  calibrated, tmp_path, path, change, words
):
  whole = json.loads((calibrated / "run" / "calibration.json").read_text())
  file = tmp_path / "calibration.json"
  file.write_text(json.dumps(damage(whole, path, change)))
  with pytest.raises(mtpjax.UserError) as error:
    Calibration.load(file)
  line = str(error.value)
  assert line.startswith(f"{file}: is damaged (") and "\n" not in line
  assert words in line and f"`mtpjax calibrate {tmp_path}` makes it" in line


@pytest.mark.parametrize("content", [b"[" * 100_000, b"\xff", b"[]", b""])
def test_what_is_no_calibration_is_one_line(tmp_path, content):
  file = tmp_path / "calibration.json"
  file.write_bytes(content)
  with pytest.raises(mtpjax.UserError, match="is damaged") as error:
    Calibration.load(file)
  assert "\n" not in str(error.value)


@pytest.mark.parametrize(
  "kept, prompts, settings, reasons, command",
  [
    ("all", 1, {}, "", ""),
    ("all", 4, {}, "", ""),  # a factor of 2
    ("all", 5, {}, "batch 2, not 5", "--batches 5 --temperatures 0`"),
    ("all", 5, {"batch_size": 2}, "", ""),
    ("all", 1, {"temperature": 0.3}, "", ""),
    ("greedy", 1, {"temperature": 0.5}, "temperature 0, not 0.5",
     "--batches 1 --temperatures 0.5`"),
    ("sampled", 2, {}, "temperature 0.8, not 0",
     "--batches 2 --temperatures 0`"),
    ("all", 1, {"temperature": 0.8, "verifier": "typical"},
     "verifier coupled, not typical", "--batches 1 --temperatures 0.8`"),
    ("all", 1, {"verifier": "typical"}, "", ""),  # greedy: it is not asked
    ("greedy", 5, {"temperature": 0.8, "verifier": "rejection"},
     "batch 2, not 5; temperature 0, not 0.8; verifier coupled, not rejection",
     "--batches 5 --temperatures 0.8`"),
  ],
)  # fmt: skip
def test_auto_warns_of_a_calibration_of_something_else(
  calibrated, tiny_root, monkeypatch, tmp_path, capsys, decodes,
  kept, prompts, settings, reasons, command,
):  # fmt: skip
  monkeypatch.chdir(tiny_root)
  shutil.copytree(calibrated / "run", tmp_path / "run")
  path = tmp_path / "run" / "calibration.json"
  rewrite(path, LEVELS["tree"])
  calibration = Calibration.load(path)
  entries = tuple(
    entry for entry in calibration.entries
    if kept == "all" or (kept == "sampled") == (entry.temperature > 0)
  )  # fmt: skip
  dataclasses.replace(calibration, entries=entries).save(path, {})
  model = mtpjax.load(tmp_path / "run")
  capsys.readouterr()
  model.generate(["a"] * prompts, mode="auto", **settings)
  err = capsys.readouterr().err
  assert len(decodes[0]["specs"]) == 2
  if not reasons:
    assert err == ""
    return
  assert err.count("\n") == 1
  assert f"{path} was measured with {reasons}, and" in err
  assert f"`mtpjax calibrate {tmp_path / 'run'} {command}" in err


def test_a_calibration_of_another_step_is_used_with_a_warning(
  calibrated, tiny_root, monkeypatch, tmp_path, capsys
):
  monkeypatch.chdir(tiny_root)
  shutil.copytree(calibrated / "run", tmp_path / "run")
  path = tmp_path / "run" / "calibration.json"
  path.write_text(path.read_text().replace('"step": 12', '"step": 6'))
  argv = ["generate", str(tmp_path / "run"), "--prompt", "a", "--mode", "auto"]
  assert cli.main([*argv, "--max-new-tokens", "2"]) == 0
  assert "is of step 6, this is step 12" in capsys.readouterr().err


def test_mistakes_are_one_line(in_tiny_root, fails):
  assert "work directory" in fails("calibrate", "runs/none")
  assert "--texts" in fails("calibrate", WORKDIR, "--texts", 1)
  line = fails("calibrate", WORKDIR, "--texts", 9999)
  assert "held-out prompts" in line


def test_what_heads_cost_is_told_from_what_nodes_cost(monkeypatch):
  """Passes of known cost: 1 ms, a tenth per further node, 0.2 per head."""

  def known(model, params, requests, trees, repeats, others):
    fed = [(t.size, 1 + 0.1 * (t.size - 1) + 0.2 * t.max_depth) for t in trees]
    # Other drafters cost what they cost: nothing is told apart.
    return fed + [(tree.size, 7.0 + tree.size) for _, tree in others]

  monkeypatch.setattr(calibrating, "measure_pass_costs", known)
  model = types.SimpleNamespace(heads=Heads(offsets=(1, 2, 3, 4)))
  calibrator = Calibrator(
    model, None, None, (), config_lib.Decode(), lambda *_: [], 1
  )
  found = {("lookup", 4): 2.5, ("lookup", 7): 3.0}
  modes = {"lookup": decode.MODES["lookup"], "next": decode.MODES["next"]}
  monkeypatch.setattr(decode, "MODES", modes)
  trees = [decode.Tree.chain(n) for n in range(4)]
  texts = Texts(
    Ranked([], []), Ranked([], []), trees,
    lambda mode, tree: found[mode, tree.max_depth],
  )  # fmt: skip
  costs, others = calibrator._measure(texts, [])
  assert others == [
    Level(decode.Tree.chain(4), 2.5, 12.0, "lookup"),
    Level(decode.Tree.chain(7), 3.0, 15.0, "lookup"),
  ]
  assert costs.head_secs == pytest.approx(0.2)
  for nodes in (1, 2, 4):
    for heads in (0, 3):
      want = 1 + 0.1 * (nodes - 1) + 0.2 * heads
      assert costs.secs(nodes, heads) == pytest.approx(want)


def test_the_nearest_entry_is_of_the_same_kind_first():
  costs = PassCosts(((1, 1.0),))
  choice = Choice(decode.Tree.root(), 1.0, 1.0, 1.0, 1.0, "")
  entries = tuple(
    Entry(batch, temperature, costs, 0.0, choice, (PLAIN,))
    for batch in (1, 8)
    for temperature in (0.0, 1.0)
  )
  calibration = Calibration(0, "", entries)
  for batch, temperature, want in (
    (1, 0.0, (1, 0.0)), (8, 0.3, (8, 1.0)), (2, 0.1, (1, 1.0)),
    (4, 2.0, (8, 1.0)), (100, 0.0, (8, 0.0)),
  ):  # fmt: skip
    entry = calibration.nearest(batch, temperature)
    assert (entry.batch, entry.temperature) == want


def test_a_work_directory_in_use_is_refused_at_once(in_tiny_root, fails):
  with WorkDir("runs/quickstart").hold(pytest.fail):
    line = fails("calibrate", "runs/quickstart")
  assert "runs/quickstart: in use by process" in line
