"""What `import mtpjax` offers."""

import ast
import inspect
import subprocess
import sys

import pytest

import mtpjax
from mtpjax import config as config_lib

WORKDIR = "runs/quickstart"
PROGRAM = """
import sys, mtpjax
assert not {"jax", "rich", "numpy"} & set(sys.modules)
names = dir(mtpjax)
assert not {"jax", "rich", "numpy"} & set(sys.modules)
assert "Config" in dir(mtpjax.config) and "jax" not in sys.modules
mtpjax.losses.multi_offset_loss, mtpjax.data.prepare
print(names == sorted(mtpjax.__all__), *names)
"""


def test_names_are_there_before_anything_is_imported():
  done = subprocess.run(
    [sys.executable, "-c", PROGRAM], capture_output=True, text=True
  )
  assert not done.returncode, done.stderr
  is_all, *names = done.stdout.split()
  assert is_all == "True"
  assert {"load", "train", "prepare", "UserError", "losses"} <= set(names)


def test_every_name_can_be_had():
  for name in mtpjax.__all__:
    assert getattr(mtpjax, name) is not None
  with pytest.raises(AttributeError, match="no attribute 'lod'"):
    mtpjax.lod  # noqa: B018


def test_a_type_checker_sees_what_is_there():
  """It reads imports that are never run."""
  [block] = [
    node.body
    for node in ast.parse(inspect.getsource(mtpjax)).body
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
  ]
  for line in block:
    for alias in line.names:
      assert alias.name in mtpjax.__all__
      assert getattr(mtpjax, alias.name) is not None
  typed = {alias.name for line in block for alias in line.names}
  rest = {"UserError", "__version__", "prepare", "train"}
  assert typed | rest == set(mtpjax.__all__)


def test_train_is_a_function_and_a_module():
  import mtpjax.train as module
  from mtpjax import train
  from mtpjax.train import make_train_step

  assert train is module is mtpjax.train and callable(train)
  assert train.make_train_step is make_train_step
  assert list(inspect.signature(train).parameters) == ["config", "workdir"]


def test_prepare_and_train_are_what_the_commands_are(in_tiny_root, capsys):
  config = config_lib.load_experiment("tiny.py")
  prepared = mtpjax.prepare(config)
  assert prepared["kept"] and prepared["splits"]["train"]["rows"] > 0
  trained = mtpjax.train(config, in_tiny_root / WORKDIR)
  assert trained["step"] == 12
  printed = capsys.readouterr()
  assert "nothing to do" in printed.err and printed.out == ""


@pytest.mark.parametrize("config", ["tiny.py", None, {"train": {"steps": 1}}])
def test_what_is_no_configuration_is_one_line(tmp_path, config):
  for call in (
    lambda: mtpjax.train(config, tmp_path / "run"),
    lambda: mtpjax.prepare(config),
  ):
    with pytest.raises(mtpjax.UserError, match="load_experiment") as error:
      call()
    assert "\n" not in str(error.value)
  assert not (tmp_path / "run").exists()


def test_a_model_is_shown_in_one_line(in_tiny_root):
  loaded = mtpjax.load(WORKDIR)
  text = repr(loaded)
  assert "\n" not in text and len(text) < 200
  assert WORKDIR in text and "step 12" in text and "(1, 2, 3)" in text
  n_params = sum(
    leaf.size for part in ("lm", "heads") for leaf in leaves(loaded, part)
  )
  assert f"{n_params / 1e6:.2f} M parameters" in text


def leaves(loaded, part):
  import jax

  return jax.tree.leaves(loaded.params[part])
