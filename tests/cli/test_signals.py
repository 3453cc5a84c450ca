"""Ctrl-C and signals to end, at any moment of a command."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from mtpjax import cli
from mtpjax.cli import built_in

HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture
def ends(monkeypatch, capsys):
  """Runs a command that does `action`; returns (status, standard error)."""

  def run(action):
    monkeypatch.setattr(built_in, "_list", lambda args, console: action())
    before = [signal.getsignal(number) for number in HANDLED]
    status = cli.main(["list"])
    assert [signal.getsignal(number) for number in HANDLED] == before
    return status, capsys.readouterr().err

  return run


def wait():
  while True:
    time.sleep(0.01)


@pytest.mark.parametrize(
  "number, status, line",
  [
    (signal.SIGINT, 130, "mtpjax: interrupted\n"),
    (signal.SIGTERM, 143, "mtpjax: terminated\n"),
    (signal.SIGHUP, 129, "mtpjax: hung up\n"),
  ],
)
def test_a_signal_is_one_line_and_cleans_up(ends, number, status, line):
  left = []

  def action():
    with contextlib.ExitStack() as stack:
      stack.callback(left.append, "cleaned")
      # As libraries do that wrap what goes wrong.
      with contextlib.suppress(Exception):
        os.kill(os.getpid(), number)
        wait()

  assert ends(action) == (status, line)
  assert left == ["cleaned"]


def test_a_signal_that_became_another_error_is_still_one(ends):
  def action():
    try:
      signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
      raise ImportError("initialization failed") from None

  assert ends(action) == (130, "mtpjax: interrupted\n")


def test_a_signal_that_python_forgets_is_sent_again(ends):
  class Collected:
    def __del__(self):
      signal.raise_signal(signal.SIGINT)

  def action():
    Collected()
    wait()

  assert ends(action) == (130, "mtpjax: interrupted\n")


@pytest.mark.parametrize("times, is_imported", [(1, True), (2, False)])
def test_an_import_ends_before_a_signal_is_raised(
  ends, tmp_path, monkeypatch, times, is_imported
):
  monkeypatch.syspath_prepend(tmp_path)
  (tmp_path / "slow_module.py").write_text(
    "import signal, sys\n"
    f"for _ in range({times}): signal.raise_signal(signal.SIGINT)\n"
    "sys.modules['signal'].was_imported = True\n"
  )
  monkeypatch.setattr(signal, "was_imported", False, raising=False)

  def action():
    import slow_module  # noqa: F401

  # Though the command is over before the signal is raised.
  assert ends(action) == (130, "mtpjax: interrupted\n")
  assert signal.was_imported == is_imported
  sys.modules.pop("slow_module", None)

  def go_on():
    action()
    wait()

  assert ends(go_on) == (130, "mtpjax: interrupted\n")
  sys.modules.pop("slow_module", None)


def test_what_is_ignored_stays_so(ends):
  before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
  try:
    assert ends(lambda: signal.raise_signal(signal.SIGHUP)) == (0, "")
  finally:
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
  "moment",
  [
    # While the command is imported, also by what an extension module runs, and
    # at the interpreter's end.
    "sys.meta_path.insert(0, Interrupt())",
    "sys.meta_path.insert(0, InExtension())",
    "atexit.register(signal.raise_signal, signal.SIGINT)",
  ],
)
def test_ctrl_c_before_and_after_the_work(moment, tmp_path):
  program = f"""
import atexit, ctypes, signal, sys
from mtpjax.cli import main
class Interrupt:
  def find_spec(self, name, path=None, target=None):
    if name == "mtpjax.cli.bench":
      signal.raise_signal(signal.SIGINT)
class InExtension:
  def find_spec(self, name, path=None, target=None):
    if name == "mtpjax.cli.bench":
      run = ctypes.pythonapi.PyRun_String
      run.restype = ctypes.py_object
      run.argtypes = [ctypes.c_char_p, ctypes.c_int, *[ctypes.py_object] * 2]
      run(b"raise KeyboardInterrupt", 257, {{}}, {{}})
{moment}
sys.argv = ["mtpjax", "list"]
sys.exit(main())
"""
  # As a module, for which the interpreter looks at interrupts once more.
  (tmp_path / "program.py").write_text(program)
  root = pathlib.Path(__file__).parents[2]
  done = subprocess.run(
    [sys.executable, "-m", "program"], capture_output=True, text=True,
    cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(root)},
  )  # fmt: skip
  assert (done.returncode, done.stderr) == (130, "mtpjax: interrupted\n")
