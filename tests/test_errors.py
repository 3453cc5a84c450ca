"""What a message tells the user to type is what a shell takes as one word."""

import shlex

import pytest

from mtpjax.budget import Calibration
from mtpjax.checkpoint import WorkDir
from mtpjax.data import load_fingerprint
from mtpjax.errors import UserError, quoted

ODD = ("my run", "[1]", "it's", "$HOME", "a;b", "*", "", "naïve run")
PLAIN = ("runs/a", "run_1-b.json", "../runs/é/ü", "運行")


@pytest.mark.parametrize("path", ODD + PLAIN)
def test_a_shell_reads_the_path_as_it_is(path):
  assert shlex.split(quoted(path)) == [path]
  assert (quoted(path) == path) == (path in PLAIN)


def _no_calibration(path):
  Calibration.load(path / "calibration.json")


@pytest.mark.parametrize(
  "fails",
  [_no_calibration, load_fingerprint, lambda path: WorkDir(path).load_config()],
)
def test_commands_in_messages_can_be_pasted(tmp_path, fails):
  path = tmp_path / "my run [1]"
  with pytest.raises(UserError) as error:
    fails(path)
  assert str(path) in shlex.split(
    str(error.value).split("mtpjax ", 1)[1].replace("`", " ")
  )
