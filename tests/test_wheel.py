"""The wheel has the package, all of it, and nothing else."""

import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import mtpjax

ROOT = pathlib.Path(__file__).parents[1]
FILES = (
  "setup.cfg", "pyproject.toml", "requirements.txt", "README.md", "LICENSE",
)  # fmt: skip
FOLDERS = ("mtpjax", "experiments", "launch", "tests")


def python(*argv, cwd, **env):
  done = subprocess.run(
    [sys.executable, *map(str, argv)],
    cwd=cwd,
    env=os.environ | env,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr
  return done.stdout.strip()


def test_the_wheel_works_without_the_sources(tmp_path):
  # Built from a copy: setuptools leaves folders, and takes up old ones.
  source = tmp_path / "source"
  source.mkdir()
  for name in FILES:
    shutil.copy(ROOT / name, source)
  for name in FOLDERS:
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / name, source / name, ignore=ignored)
  python(
    "-m", "pip", "wheel", "--no-index", "--no-deps", "--no-build-isolation",
    "--wheel-dir", tmp_path, source, cwd=tmp_path,
  )  # fmt: skip
  [wheel] = tmp_path.glob("*.whl")
  unpacked = tmp_path / "unpacked"
  with zipfile.ZipFile(wheel) as archive:
    archive.extractall(unpacked)
  info = f"mtpjax-{mtpjax.__version__}.dist-info"
  assert {path.name for path in unpacked.iterdir()} == {"mtpjax", info}
  modules = {path.relative_to(ROOT) for path in (ROOT / "mtpjax").rglob("*.py")}
  assert modules == {
    path.relative_to(unpacked) for path in unpacked.rglob("*.py")
  }
  assert (unpacked / "mtpjax" / "py.typed").is_file()
  elsewhere = tmp_path / "elsewhere"
  elsewhere.mkdir()
  environment = {"PYTHONPATH": str(unpacked), "PYTHONSAFEPATH": "1"}
  version = python("-m", "mtpjax", "--version", cwd=elsewhere, **environment)
  assert version == mtpjax.__version__
  program = "import mtpjax; mtpjax.load; print(mtpjax.__file__)"
  file = python("-c", program, cwd=elsewhere, **environment)
  assert pathlib.Path(file) == unpacked / "mtpjax" / "__init__.py"
