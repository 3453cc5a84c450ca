import json
import pathlib
import subprocess
import sys

import pytest

from mtpjax import cli

TINY = (
  "--model.d-model 32 --model.n-layers 4 --model.n-attention-heads 2 "
  "--model.n-kv-heads 1 --model.d-head 16 --model.d-ff 64 "
  "--model.vocab-size 96"
).split()
ROWS = "--data.row-length 32 --train.batch-size 2".split()

# Runs the command line with grain, tfds and array_record made unimportable.
WITHOUT_DATA_LIBRARIES = """
import sys
for name in ("grain", "tensorflow_datasets", "array_record", "tensorflow"):
  sys.modules[name] = None
from mtpjax.cli import main
sys.exit(main(sys.argv[1:]))
"""


def bench(tmp_path, *argv):
  out = tmp_path / "bench.json"
  command = [sys.executable, "-c", WITHOUT_DATA_LIBRARIES, "bench", *argv]
  done = subprocess.run(
    [*command, *TINY, "--json", str(out)], capture_output=True, text=True
  )
  assert done.returncode == 0, done.stderr
  report = json.loads(out.read_text())
  assert report["config"]["model"]["vocab_size"] == 96
  assert {"jax", "mtpjax"} <= set(report["versions"])
  assert report["device"]["platform"] == "cpu"
  return report["rows"]


def test_memory(tmp_path):
  rows = bench(tmp_path, "memory", *ROWS, "--n", "1,3", "--repeats", "1")
  assert {(row["variant"], row["n"]) for row in rows} == {
    (variant, n) for variant in ("unrolled", "remat", "fused") for n in (1, 3)
  }
  assert all(row["temp_bytes"] > 0 and row["secs"] > 0 for row in rows)
  for row in rows:
    if row["variant"] == "unrolled":
      assert row["secs_over_unrolled"] == 1


def test_train(tmp_path):
  rows = bench(tmp_path, "train", *ROWS, "--n", "1,3", "--repeats", "2")
  assert [(row["n"], row["trunk_layers"]) for row in rows] == [(1, 4), (3, 2)]
  for row in rows:
    assert row["tokens_per_sec"] == pytest.approx(64 / row["step_secs"])
  # Two more products with the unembedding; layers are only moved.
  assert rows[1]["flops_per_token"] - rows[0]["flops_per_token"] == (
    2 * 6 * 32 * 96
  )


SECS = {
  "pass_secs", "token_p50_secs", "token_p95_secs", "bare_pass_secs",
  "trunk_secs", "draft_secs", "verify_secs", "commit_secs",
}  # fmt: skip


def test_decode(tmp_path):
  rows = bench(
    tmp_path, "decode", "--batches", "2", "--temperatures", "1",
    "--new-tokens", "12", "--prompt-length", "8", "--repeats", "1",
    "--heads.offsets", "1,2,3", "--modes", "next,heads-idle,tree",
  )  # fmt: skip
  assert [row["mode"] for row in rows] == ["next", "heads-idle", "tree"]
  for row in rows:
    assert row["outputs_identical"] is True
    assert row["class"] == "random" and row["batch"] == 2
    assert row["tokens"] == 24
    assert SECS <= set(row) and row["kept"] > 0
    assert row["token_p50_secs"] <= row["token_p95_secs"]
    drafts = row["mode"] != "next"
    assert all(row[name] > 0 for name in SECS if drafts or name != "draft_secs")
    if row["mode"] == "tree":
      assert 1 <= row["tokens_per_pass"] <= 3
      assert len(row["acceptance_by_offset"]) == 2
      assert len(row["acceptance_by_node"]) == 13
    else:
      assert row["tokens_per_pass"] == row["kept"] == 1 or drafts
      assert row["proposed"] == row["accepted"] == 0
      assert row["cache_rows_dropped"] == 0
  report = json.loads((tmp_path / "bench.json").read_text())
  [trees] = report["trees"]
  assert set(trees) - {"batch", "temperature"} == set(
    report["settings"]["modes"]
  )
  assert len(trees["tree"]["parents"]) == 13
  assert report["settings"]["tree"] == "" and "pass_costs" not in report


def prompt_file(path, *records):
  path.write_text("".join(json.dumps(record) + "\n" for record in records))
  return str(path)


def test_decode_of_a_run_by_class_with_figures(
  in_tiny_root, tmp_path, monkeypatch, capsys
):
  from mtpjax.jobs.bench import decode

  cost_trees = decode.cost_trees
  monkeypatch.setattr(decode, "cost_trees", lambda m: cost_trees(m, (1, 4)))
  prompts = prompt_file(
    tmp_path / "prompts.jsonl",
    {"text": "def f2(x):", "class": "mine"},
    {"ids": [256, 100]},
    {"text": "d", "class": "code"},
  )
  out, folder = tmp_path / "out.json", tmp_path / "figures"
  assert not cli.main(
    ["bench", "decode", "runs/quickstart", "--classes", "code,held-out"]
    + ["--prompts", prompts, "--modes", "next,lookup", "--batches", "4"]
    + ["--new-tokens", "6", "--prompt-length", "8", "--repeats", "1"]
    + ["--figures", str(folder), "--json", str(out)]
  )
  report = json.loads(out.read_text())
  rows = report["rows"]
  # A class of a file that has the name of another one joins it.
  assert [(row["class"], row["mode"]) for row in rows] == [
    (kind, mode)
    for kind in ("code", "held-out", "mine", "prompts")
    for mode in ("next", "lookup")
  ]
  for row in rows:
    # Five texts of code take two batches of four.
    assert row["tokens"] == 6 * (8 if row["class"] == "code" else 4)
    assert row["outputs_identical"] is True
  assert report["settings"]["prompts"] == prompts
  assert [nodes for nodes, _ in report["pass_costs"]["batch 4"]] == [1, 4]
  for name in ("acceptance", "pass_costs"):
    png = (folder / f"{name}.png").read_bytes()
    assert png.startswith(b"\x89PNG") and len(png) > 10_000
  printed = capsys.readouterr().out
  assert "tok/pass" in printed and "…" not in printed
  assert max(map(len, printed.split("figures:")[0].splitlines())) <= 100


DECODE = ("bench", "decode", "runs/quickstart")


def test_prompts_that_a_bench_cannot_read_are_one_line(
  in_tiny_root, tmp_path, fails
):
  path = tmp_path / "prompts.jsonl"
  for record, words in (
    ({"text": "a", "class": 7}, "prompts.jsonl:2: needs"),
    ({"text": "a", "class": " "}, "must be a name"),
    ({"text": "a", "temperature": 1.0}, "prompt 2: has 'temperature'"),
    ({"words": "a"}, "prompts.jsonl:2"),
    ({"text": "a", "ids": [1]}, "not both"),
    ({"text": 5, "ids": [1]}, "not both"),
    ({"text": "a", "ids": ["b"]}, "not both"),
    ({"ids": [1, 999]}, "id 999 is outside"),
    ({"ids": []}, "has no tokens"),
  ):
    file = prompt_file(path, {"text": "fine"}, record)
    assert words in fails(*DECODE, "--prompts", file), record
  assert "no such file" in fails(*DECODE, "--prompts", "none.jsonl")


def test_what_a_model_cannot_do_is_found_before_anything_runs(
  in_tiny_root, tmp_path, fails, monkeypatch
):
  from mtpjax.jobs.bench import decode

  monkeypatch.setattr(decode, "measure_decoding", None)
  short = (*DECODE, "--prompt-length", "8")
  line = fails(*short, "--classes", "code,verse")
  assert "'verse'" in line and "structured" in line
  assert "3 drafts deep" in fails(*short, "--tree", "4,2,1")
  assert "none.json" in fails(*short, "--tree", "none.json")
  assert "--tree" in fails(*short, "--tree", "4", "--modes", "next,chain")
  assert "auto" in fails(*short, "--modes", "next,auto")
  assert "twice" in fails(*short, "--modes", "next,next")
  block = ("--verifier", "block", "--modes", "next,tree")
  assert "block" in fails(*short, *block)
  file = tmp_path / "file"
  file.write_text("")
  assert "no folder" in fails(*short, "--figures", file / "below")
  monkeypatch.setitem(sys.modules, "matplotlib", None)
  assert "mtpjax[figures]" in fails(*short, "--figures", tmp_path)


def test_a_random_model_has_no_classes_of_prompts(fails):
  assert "--classes" in fails("bench", "decode", "--classes", "code")
  assert "--prompts" in fails("bench", "decode", "--prompts", "none.jsonl")
  chain = ("--heads.offsets", "1", "--modes", "chain")
  line = fails("bench", "decode", *TINY, *chain)
  assert "offset 2" in line


@pytest.mark.parametrize(
  "argv, words",
  [
    ("memory --n ,", "argument --n"),
    ("train --n ,", "argument --n"),
    ("train --n 0", "argument --n"),
    ("train --repeats 0", "argument --repeats"),
    ("memory --repeats -1", "argument --repeats"),
    ("decode --repeats 0", "argument --repeats"),
    ("decode --new-tokens 1", "1 is not 2 or more"),
    ("decode --prompt-length 0", "argument --prompt-length"),
    ("decode --batches=-1", "-1 is not 1 or more"),
    ("decode --batches ,", "argument --batches"),
    ("decode --temperatures -1", "argument --temperatures"),
    ("decode --temperatures nan", "argument --temperatures"),
    ("decode --modes next,fast", "'fast'"),
    ("decode --verifier best", "'best' is not one of"),
    ("decode --repeats x", "invalid int value: 'x'"),
    # Nothing that a bench does not read is offered.
    ("memory --heads.offsets 1,2", "--heads.offsets: no such option"),
    ("train --heads.offsets 1,2", "--heads.offsets: no such option"),
    ("train --loss.weights 1,1", "--loss.weights: no such option"),
    ("memory --optim.peak-lr 1", "--optim.peak-lr: no such option"),
    ("decode --data.row-length 9", "--data.row-length: no such option"),
    ("decode --decode.seed 1", "--decode.seed: no such option"),
  ],
)
def test_mistakes_are_one_line(argv, words, fails):
  assert words in fails("bench", *argv.split())


def test_a_trained_model_has_its_own_configuration(in_tiny_root, fails):
  decode = ("bench", "decode", "runs/quickstart")
  line = fails(*decode, "--model.d-ff", "7", "--heads.kind", "linear")
  assert "--model.d-ff" in line and "heads" not in line


def test_prompts_are_not_cut_to_the_rows(in_tiny_root, fails):
  line = fails("bench", "decode", "runs/quickstart", "--prompt-length", "49")
  assert "49" in line and "48" in line


def test_memory_of_a_chain_of_heads_is_refused(fails):
  line = fails(
    "bench", "memory", "--heads.kind", "sequential", "--heads.tap", "last"
  )
  assert "'sequential' heads run before this loss" in line


def test_a_killed_bench_leaves_the_rows_so_far(tmp_path, monkeypatch, capsys):
  from mtpjax.jobs.bench import decode

  measure, out = decode.measure_decoding, tmp_path / "out.json"

  def measure_once(*args, **kwargs):
    if out.exists():
      raise KeyboardInterrupt
    return measure(*args, **kwargs)

  monkeypatch.setattr(decode, "measure_decoding", measure_once)
  assert (
    cli.main(
      ["bench", "decode", *TINY, "--modes", "next", "--batches", "1,2"]
      + ["--heads.offsets", "1,2"]
      + ["--new-tokens", "4", "--prompt-length", "4", "--repeats", "1"]
      + ["--json", str(out)]
    )
    == 130
  )
  report = json.loads(out.read_text())
  assert [(row["batch"], row["mode"]) for row in report["rows"]] == [
    (1, "next")
  ]
  assert report["settings"]["batches"] == [1, 2]
  assert "batch 1, temperature 0" in capsys.readouterr().out
  assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_figures_are_written_whole(tmp_path):
  from mtpjax.cli.arguments import write_figures, write_known_figures

  out = tmp_path / "new" / "out.json"
  for rows in ([1], [1, 2]):
    write_figures(out, {"rows": rows})
    assert json.loads(out.read_text()) == {"rows": rows}
  assert [path.name for path in out.parent.iterdir()] == ["out.json"]
  link = tmp_path / "link.json"
  link.symlink_to(out)
  write_known_figures(link, {})
  assert link.is_symlink() and json.loads(out.read_text()) == {}
  write_known_figures(None, {})


def test_figures_for_a_stream_come_once_after_what_it_has(tmp_path):
  from mtpjax.cli.arguments import write_figures, write_known_figures

  # As of `mtpjax bench --json /dev/stdout > FILE`.
  with open(tmp_path / "file", "w") as file:
    file.write("a table\n")
    file.flush()
    path = pathlib.Path(f"/dev/fd/{file.fileno()}")
    write_known_figures(path, {"rows": [1]})
    write_figures(path, {"rows": [1, 2]})
  first, _, rest = (tmp_path / "file").read_text().partition("\n")
  assert first == "a table" and json.loads(rest) == {"rows": [1, 2]}
