import argparse
import json
import pathlib
import subprocess
import sys

import pytest

from mtpjax import cli
from mtpjax import config as config_lib

COMMANDS = (
  [],
  ["list"],
  ["new"],
  ["prepare"],
  ["train"],
  ["evaluate"],
  ["generate"],
  ["chat"],
  ["inspect"],
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


def test_underscores_are_dashes_in_every_option(in_tiny_root, fails):
  from mtpjax.cli import command

  def parsers(parser):
    yield parser
    for action in parser._actions:
      if isinstance(action, argparse._SubParsersAction):
        for each in action.choices.values():
          yield from parsers(each)

  many = 0
  for parser in parsers(command.build_parser()):
    for option in parser._option_string_actions:
      if option.startswith("--") and "-" in option[2:]:
        spelt = "--" + option[2:].replace("-", "_")
        assert parser._with_dashes([spelt, f"{spelt}=a_b"]) == [
          option, f"{option}=a_b"
        ]  # fmt: skip
        many += 1
  assert many > 100
  train = ("train", "tiny.py", "--workdir", "runs/none")
  for spelt in ("--optim.peak_lr", "--optim.peak-lr"):
    assert "optim.peak_lr: 'x'" in fails(*train, spelt, "x")
    assert "optim.peak_lr: 'x'" in fails(*train, f"{spelt}=x")
  # What stands after an option is its value, whatever it looks like.
  line = fails("generate", "runs/none", "--prompt=--max_new_tokens")
  assert "runs/none" in line


def test_help_shows_every_default(capsys):
  for name in ("train", "prepare"):
    with pytest.raises(SystemExit):
      cli.main([name, "--help"])
    shown = "".join(capsys.readouterr().out.split())
    for _, field in config_lib.fields():
      kind = field.type
      default = config_lib.written(field.default, kind)
      help = f"{field.metadata['help']}; default {default}"
      assert "".join(help.split()) in shown
      if default != "empty":
        assert config_lib.parse_value(default, kind) == field.default


def test_a_new_experiment_begins_as_a_built_in_one(
  tmp_path, monkeypatch, capsys, fails
):
  monkeypatch.chdir(tmp_path)
  assert cli.main(["list"]) == 0
  listed = capsys.readouterr().out
  built_in = {each.name: each for each in config_lib.built_in_experiments()}
  assert all(f"{each}: " in listed for each in built_in)
  for name, each in built_in.items():
    file = f"made/{name}_[1].py"
    assert cli.main(["new", file, "--from", name]) == 0
    assert file in capsys.readouterr().out
    assert pathlib.Path(file).read_bytes() == each.path.read_bytes()
    pathlib.Path(file).write_text("mine")
    assert "is there already" in fails("new", file)
    assert pathlib.Path(file).read_text() == "mine"
  assert "ends in .py" in fails("new", "mine")
  assert "mtpjax list" in fails("new", "mine.py", "--from", "nothing")
  assert not pathlib.Path("mine.py").exists()


def test_a_built_in_name_is_taken_where_a_file_is(tmp_path, monkeypatch, fails):
  monkeypatch.chdir(tmp_path)
  for argv in (("prepare",), ("train", "--workdir", "runs/a")):
    assert "data.row_length: 1" in fails(
      argv[0], "quickstart", *argv[1:], "--data.row-length", "1"
    )
  assert list(tmp_path.iterdir()) == []


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
  printed = capsys.readouterr()
  assert "DAMAGED" in printed.err and "step 6" in printed.out
  damage(6)
  assert cli.main(["evaluate", str(run)]) == 2
  line = capsys.readouterr().err.splitlines()[-1]
  assert line.startswith("mtpjax: error: ") and "is damaged" in line
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


def test_json_is_checked_before_the_work(in_tiny_root, tmp_path, fails):
  (tmp_path / "file").touch()
  train = ("train", "tiny.py", "--workdir", tmp_path / "run", "--json")
  for path in (tmp_path, tmp_path / "file" / "out.json"):
    assert str(path) in fails(*train, path)
  assert not (tmp_path / "run").exists()


def test_json_makes_the_folders_above_it(in_tiny_root, tmp_path):
  out = tmp_path / "a" / "b" / "out.json"
  assert not cli.main(["prepare", "tiny.py", "--json", str(out)])
  assert json.loads(out.read_text())["splits"]


def test_a_variant_that_is_needed_is_asked_for(tmp_path, fails):
  path = tmp_path / "needs.py"
  path.write_text("def config(variant):\n  return variant\n")
  assert "--variant" in fails("prepare", path)


def test_tokenizer_train_names_its_own_options(tmp_path, fails):
  text, out = tmp_path / "broken.txt", tmp_path / "tokenizer.json"
  text.write_bytes(b"abc\xff" * 9)
  train = ("tokenizer", "train", "--vocab-size", "258", "--out", out)
  line = fails(*train, "--sources", f"text:{text}")
  assert "byte 3" in line and " --replace-invalid-utf8 " in line
  for source in ("words:x", "text:none/*.txt"):
    line = fails(*train, "--sources", source)
    assert source in line and "data.sources" not in line
  (tmp_path / "empty.txt").touch()
  line = fails(*train, "--sources", f"text:{tmp_path}/empty.txt")
  assert "no text" in line and "data.sources" not in line
  argv = [*train, "--sources", f"text:{text}", "--replace-invalid-utf8"]
  assert not cli.main(list(map(str, argv)))
  assert out.is_file()


def test_tokenizer_train(in_tiny_root, tmp_path, capsys):
  out = tmp_path / "bpe" / "tokenizer.json"
  argv = ["tokenizer", "train", "--sources", "text:corpus/*.txt"]
  assert not cli.main([*argv, "--vocab-size", "300", "--out", str(out)])
  assert out.is_file()
  assert str(out) in capsys.readouterr().out
