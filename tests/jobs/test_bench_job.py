import json
import subprocess
import sys

import pytest

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


def test_decode(tmp_path):
  rows = bench(
    tmp_path, "decode", "--batches", "1,2", "--temperatures", "0,1",
    "--new-tokens", "12", "--prompt-length", "8", "--repeats", "1",
    "--heads.offsets", "1,2,3",
  )  # fmt: skip
  assert len(rows) == 8
  for row in rows:
    assert row["outputs_identical"] is True
    assert row["pass_secs"] > 0 and row["bare_pass_secs"] > 0
    if row["mode"] == "next":
      assert row["tokens_per_pass"] == 1
    else:
      assert 1 <= row["tokens_per_pass"] <= 3


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
