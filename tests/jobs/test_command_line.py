import json
import pathlib
import subprocess
import sys

import pytest

from mtpjax import cli

COMMANDS = (
  [],
  ["prepare"],
  ["train"],
  ["evaluate"],
  ["generate"],
  ["bench"],
  ["bench", "memory"],
  ["bench", "train"],
  ["bench", "decode"],
  ["tokenizer"],
  ["tokenizer", "train"],
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_at_every_level(command, capsys):
  with pytest.raises(SystemExit) as ended:
    cli.main([*command, "--help"])
  assert ended.value.code == 0
  assert "usage: mtpjax" in capsys.readouterr().out


def test_help_imports_no_jax():
  program = (
    "import sys; from mtpjax.cli import main\n"
    "try: main(['train', '--help'])\n"
    "except SystemExit: sys.exit('jax' in sys.modules)"
  )
  done = subprocess.run([sys.executable, "-c", program], capture_output=True)
  assert done.returncode == 0


def test_mistakes_are_one_line(in_tiny_root, tmp_path, fails):
  train = ("train", "tiny.py", "--workdir", tmp_path / "run")
  assert "COMMAND" in fails()
  assert "'trian'" in fails("trian")
  assert "no_such.py" in fails("train", "no_such.py", "--workdir", "x")
  assert "--optim.peak-lr" in fails(*train, "--optim.peak-rl", "1e-3")
  assert "float" in fails(*train, "--optim.peak-lr", "fast")
  for offsets in ("1,3,2", "1,2,2", "2,3", "0,1", ""):
    line = fails(*train, "--heads.offsets", offsets)
    assert "heads.offsets" in line and "1,2,3,4" in line
  assert "data.row_length" in fails(
    *train, "--data.row-length", "3", "--heads.offsets", "1,2,3"
  )
  assert "mesh" in fails(*train, "--mesh.data", "64")
  assert "shards" in fails(*train, "--mesh.data", "8")
  assert "model.vocab_size" in fails(*train, "--model.vocab-size", "7")
  assert "mtpjax prepare" in fails(*train, "--data.path", tmp_path / "none")
  assert "model.d_model is 32 there, 64 here" in fails(
    "train", "tiny.py", "--workdir", "runs/quickstart",
    "--model.d-model", "64", "--train.steps", "20",
  )  # fmt: skip
  assert "matches no file" in fails(
    "prepare", "tiny.py", "--data.sources", "text:none/*.txt",
    "--data.path", tmp_path / "d",
  )  # fmt: skip
  (tmp_path / "broken.txt").write_bytes(b"abc\xff")
  line = fails(
    "prepare", "tiny.py", "--data.sources", f"text:{tmp_path}/broken.txt",
    "--data.path", tmp_path / "d",
  )  # fmt: skip
  assert "byte 3" in line and "--data.replace-invalid-utf8 true" in line
  assert not (tmp_path / "run").exists()


def test_damaged_checkpoints_fall_back_then_end_in_one_line(
  in_tiny_root, tmp_path, fails, capsys
):
  import shutil

  run = tmp_path / "run"
  shutil.copytree("runs/quickstart", run)

  def damage(step):
    files = sorted(
      path
      for path in (run / "checkpoints" / str(step)).rglob("*")
      if path.is_file() and "/d/" in str(path)
    )
    path = max(files, key=lambda path: path.stat().st_size)
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)

  damage(12)
  assert not cli.main(["evaluate", str(run), "--batches", "1"])
  printed = capsys.readouterr().out
  assert "DAMAGED" in printed and "step 6" in printed
  damage(6)
  assert "damaged" in fails("evaluate", run).lower()
  shutil.rmtree(run / "checkpoints")
  assert "train first" in fails("evaluate", run)


def test_finished_run_is_left_alone(in_tiny_root, capsys):
  metrics = pathlib.Path("runs/quickstart/metrics.jsonl")
  before = metrics.read_text()
  argv = ["train", "tiny.py", "--workdir", "runs/quickstart"]
  assert cli.main(argv) == 0
  assert "nothing to do" in capsys.readouterr().out
  assert metrics.read_text() == before


def test_json_of_prepare_and_train(in_tiny_root):
  prepared = json.loads(pathlib.Path("prepared.json").read_text())
  assert prepared["splits"]["train"]["rows"] > 0
  trained = json.loads(pathlib.Path("trained.json").read_text())
  assert trained["step"] == 12
  assert trained["metrics"]["eval/loss/offset_1"] > 0


def test_tokenizer_train(in_tiny_root, tmp_path, capsys):
  out = tmp_path / "bpe" / "tokenizer.json"
  argv = ["tokenizer", "train", "--sources", "text:corpus/*.txt"]
  assert not cli.main([*argv, "--vocab-size", "300", "--out", str(out)])
  assert out.is_file()
  assert str(out) in capsys.readouterr().out
