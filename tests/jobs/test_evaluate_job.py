import json
import shutil

import jax
import numpy as np
import pytest

import mtpjax
from mtpjax import cli
from mtpjax.data import open_rows

WORKDIR = "runs/quickstart"


def test_figures_equal_an_independent_loss(in_tiny_root, tmp_path):
  """Every validation row by itself, log-softmax and arg max by NumPy."""
  out = tmp_path / "figures.json"
  assert not cli.main(["evaluate", WORKDIR, "--json", str(out)])
  figures = json.loads(out.read_text())
  assert (figures["step"], figures["offsets"]) == (12, [1, 2, 3])
  model = mtpjax.load(WORKDIR)
  params, head = model.params, model.model
  nll, correct, count = np.zeros(3), np.zeros(3), np.zeros(3)
  from mtpjax.heads import HeadContext
  from mtpjax.model import Placement

  @jax.jit
  def states_of(row):
    context = HeadContext(Placement.packed(row["positions"], row["segments"]))
    trunk = head.apply_trunk(params["lm"], row["tokens"], context.placement)
    norm = params["lm"]["final_norm"]
    return head.trunk.final_norm(norm, trunk.hidden_BTD), *(
      head.apply_head(
        jax.tree.map(lambda leaf, m=m: leaf[m], params["heads"]),
        norm,
        trunk.tap_BTD,
        context,
      )
      for m in range(2)
    )

  rows = open_rows("data", "validation")
  for i in range(len(rows)):
    row = {k: v[None] for k, v in rows[i].items()}
    for m, hidden in enumerate(states_of(row)):
      logits = np.asarray(hidden[0], np.float64) @ np.asarray(
        params["lm"]["unembedding"], np.float64
      )
      for t in range(48 - m - 1):
        ahead = t + m + 1
        same = row["segments"][0, t] == row["segments"][0, ahead] != 0
        if same and row["loss_mask"][0, ahead]:
          target = row["tokens"][0, ahead]
          nll[m] += np.log(np.exp(logits[t]).sum()) - logits[t, target]
          correct[m] += logits[t].argmax() == target
          count[m] += 1
  assert figures["targets_by_offset"] == count.tolist()
  assert figures["loss_by_offset"] == pytest.approx(nll / count, rel=1e-5)
  assert figures["accuracy_by_offset"] == pytest.approx(correct / count)


def test_with_decoding_the_table_has_all_speeds(
  in_tiny_root, tmp_path, capsys, monkeypatch, shown
):
  from mtpjax.jobs import evaluate

  monkeypatch.setattr(evaluate, "_PROMPTS", 2)
  monkeypatch.setattr(evaluate, "_NEW_TOKENS", 16)
  out = tmp_path / "figures.json"
  argv = ["evaluate", WORKDIR, "--decode", "--json", str(out)]
  assert not cli.main([*argv, "--batches", "1"])
  figures = json.loads(out.read_text())
  assert figures["outputs_identical"] is True
  assert 1 <= figures["tokens_per_pass"] <= 3
  assert figures["ratio"] == pytest.approx(
    figures["speculative_tokens_per_sec"] / figures["plain_tokens_per_sec"]
  )
  for mode in ("lookup", "merged"):
    assert figures[f"{mode}_ratio"] == pytest.approx(
      figures[f"{mode}_tokens_per_sec"] / figures["plain_tokens_per_sec"]
    )
  printed = capsys.readouterr().out
  assert "outputs identical" in printed and "lookup: tokens per pass" in printed
  assert shown == [
    [f"loading {WORKDIR}", None, 0],
    ["evaluating batches of validation rows", 1, 1],
    ["decoding held-out prompts", 16, 16],  # four modes, 1 + 3 rounds
  ]


def test_mistakes_are_one_line(in_tiny_root, fails, tmp_path):
  assert "runs/none" in fails("evaluate", "runs/none")
  assert "prepare" in fails("evaluate", WORKDIR, "--data-path", tmp_path)
  assert "9" in fails("evaluate", WORKDIR, "--step", "9")


def test_rows_that_do_not_fit_the_run_are_refused(
  in_tiny_root, fails, tmp_path
):
  out = tmp_path / "tokenizer.json"
  argv = ["tokenizer", "train", "--sources", "text:corpus/*.txt"]
  assert not cli.main([*argv, "--vocab-size", "300", "--out", str(out)])
  other = tmp_path / "data"
  argv = ["prepare", "tiny.py", "--data.path", str(other)]
  assert not cli.main([*argv, "--data.tokenizer", str(out)])
  line = fails("evaluate", WORKDIR, "--data-path", other)
  assert "another tokenizer" in line
  # Checkpoints say which rows they were trained on; so does the folder.
  run = tmp_path / "run"
  shutil.copytree(WORKDIR, run)
  fingerprint = json.loads((run / "data.json").read_text())
  fingerprint["id"] = "0" * 64
  (run / "data.json").write_text(json.dumps(fingerprint))
  assert "data fingerprint" in fails("evaluate", run)


def test_a_data_folder_prepared_anew_is_not_held_out(
  tiny_root, tmp_path, fails, monkeypatch
):
  root = tmp_path / "root"
  shutil.copytree(tiny_root, root)
  monkeypatch.chdir(root)
  shutil.rmtree("data")
  (root / "corpus" / "new.txt").write_text("something else\n" * 20)
  assert not cli.main(["prepare", "tiny.py"])
  line = fails("evaluate", WORKDIR)
  assert "not the data this run was trained on" in line
  assert "not the data this run was" in fails("bench", "decode", WORKDIR)
  assert not cli.main(["evaluate", WORKDIR, "--data-path", "data"])


def test_the_rows_of_a_run_are_found_from_another_folder(
  tiny_root, tmp_path, monkeypatch, fails
):
  root = tmp_path / "moved"
  shutil.copytree(tiny_root, root)
  run = root / WORKDIR
  monkeypatch.chdir(tmp_path)
  # Here are other rows by the same name.
  shutil.copytree(root / "data", "data")
  file = tmp_path / "data" / "fingerprint.json"
  fingerprint = json.loads(file.read_text())
  file.write_text(json.dumps(fingerprint | {"id": "0" * 64}))
  assert mtpjax.load(run).open_rows("validation").path == root / "data"
  shutil.rmtree(root / "data")
  assert "not the data this run was trained on" in fails("evaluate", run)
  file.write_text("[" * 100_000)
  line = fails("evaluate", run)
  assert "fingerprint.json: damaged; delete" in line
  shutil.rmtree("data")
  line = fails("evaluate", run)
  assert "no prepared data is there, nor near" in line
  assert "--data-path" in line


@pytest.fixture
def short_texts(in_tiny_root, tmp_path):
  """Rows of documents of three tokens, BOS and EOS among them."""
  for n in range(9):
    (tmp_path / f"{n}.txt").write_text("a")
  argv = ["prepare", "tiny.py", "--data.sources", f"text:{tmp_path}/*.txt"]
  assert not cli.main([*argv, "--data.path", str(tmp_path / "data")])
  return tmp_path / "data"


def test_figures_of_nothing_are_none(short_texts, tmp_path, capsys):
  out = tmp_path / "figures.json"
  argv = ["evaluate", WORKDIR, "--data-path", str(short_texts)]
  capsys.readouterr()
  assert not cli.main([*argv, "--json", str(out)])
  figures = json.loads(out.read_text())
  one, two, three = figures["targets_by_offset"]
  assert one == 2 * two > 0 == three
  for name in ("loss_by_offset", "accuracy_by_offset"):
    assert figures[name][2] is None
    assert None not in figures[name][:2]
  printed = capsys.readouterr().out
  assert "no valid target at offset 3 in the validation rows" in printed
  [line] = [line for line in printed.splitlines() if "offset 3: loss" in line]
  assert "none" in line and "0.0" not in line


def test_without_held_out_rows_the_way_out_is_named(
  in_tiny_root, tmp_path, fails
):
  data = str(tmp_path / "data")
  argv = ["prepare", "tiny.py", "--data.validation-fraction", "0"]
  assert not cli.main([*argv, "--data.path", data])
  for options in ([], ["--decode"]):
    line = fails("evaluate", WORKDIR, "--data-path", data, *options)
    assert f"split validation of {data}: has no rows" in line
    assert "--split train" in line and "--data-path" in line
  argv = ["evaluate", WORKDIR, "--data-path", data, "--split", "train"]
  assert not cli.main([*argv, "--batches", "1"])


def test_a_loss_that_is_no_number_is_null_and_said(
  in_tiny_root, tmp_path, capsys, monkeypatch
):
  from mtpjax.jobs import evaluate

  def make_evaluator(*args):
    values = {"loss": np.nan, "accuracy": 0.5, "targets": 7.0}
    return lambda params: {k: np.array([v] * 3) for k, v in values.items()}

  monkeypatch.setattr(evaluate, "make_evaluator", make_evaluator)
  out = tmp_path / "figures.json"
  assert not cli.main(["evaluate", WORKDIR, "--json", str(out)])
  text = out.read_text()
  assert "NaN" not in text
  assert json.loads(text)["loss_by_offset"] == [None] * 3
  assert "WARNING: the loss of offset 2 is nan" in capsys.readouterr().out


def test_what_decoding_needs_is_asked_first(short_texts, fails, monkeypatch):
  from mtpjax.jobs import evaluate

  monkeypatch.delattr(evaluate, "make_evaluator")
  argv = ["evaluate", WORKDIR, "--decode", "--data-path", short_texts]
  assert "more or longer documents" in fails(*argv)


def test_a_name_in_square_brackets_is_shown(in_tiny_root, tmp_path, capsys):
  run = tmp_path / "run[red]"
  shutil.copytree(WORKDIR, run)
  assert not cli.main(["evaluate", str(run), "--batches", "1"])
  assert "run[red], step 12" in capsys.readouterr().out
