import json
import subprocess
import sys

import pytest

TINY = (
  "--model.d-model 32 --model.n-layers 4 --model.n-attention-heads 2 "
  "--model.n-kv-heads 1 --model.d-head 16 --model.d-ff 64 "
  "--model.vocab-size 96 --data.row-length 32 --train.batch-size 2"
).split()

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
  rows = bench(tmp_path, "memory", "--n", "1,3", "--repeats", "1")
  assert {(row["variant"], row["n"]) for row in rows} == {
    (variant, n) for variant in ("unrolled", "remat", "fused") for n in (1, 3)
  }
  assert all(row["temp_bytes"] > 0 and row["secs"] > 0 for row in rows)
  for row in rows:
    if row["variant"] == "unrolled":
      assert row["secs_over_unrolled"] == 1


def test_train(tmp_path):
  rows = bench(tmp_path, "train", "--n", "1,3", "--repeats", "2")
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
