"""The wheel has the package and the experiments, and nothing else."""

import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import mtpjax

ROOT = pathlib.Path(__file__).parents[1]
FILES = (
  "setup.cfg", "setup.py", "MANIFEST.in", "pyproject.toml", "requirements.txt",
  "README.md", "LICENSE",
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
  # By way of the archive of sources, which must have all that it needs.
  build = "import setuptools.build_meta as b, sys; b.build_sdist(sys.argv[1])"
  python("-c", build, tmp_path, cwd=source)
  [archive] = tmp_path.glob("*.tar.gz")
  python(
    "-m", "pip", "wheel", "--no-index", "--no-deps", "--no-build-isolation",
    "--wheel-dir", tmp_path, archive, cwd=tmp_path,
  )  # fmt: skip
  [wheel] = tmp_path.glob("*.whl")
  unpacked = tmp_path / "unpacked"
  with zipfile.ZipFile(wheel) as archive:
    archive.extractall(unpacked)
  info = f"mtpjax-{mtpjax.__version__}.dist-info"
  assert {path.name for path in unpacked.iterdir()} == {"mtpjax", info}
  modules = {path.relative_to(ROOT) for path in (ROOT / "mtpjax").rglob("*.py")}
  experiments = {
    "mtpjax" / path.relative_to(ROOT)
    for path in (ROOT / "experiments").glob("*.py")
  }
  assert modules | experiments == {
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
  # Experiments by name, where no checkout is near.
  listed = python("-m", "mtpjax", "list", cwd=elsewhere, **environment)
  for path in experiments:
    assert f"{path.stem}: " in listed and str(unpacked / path) in listed
  python("-m", "mtpjax", "new", "mine.py", cwd=elsewhere, **environment)
  program = (
    "from mtpjax.config import load_experiment as load; "
    "assert load('quickstart') == load('mine.py'); load('smollm2_medusa')"
  )
  python("-c", program, cwd=elsewhere, **environment)
  mine = (elsewhere / "mine.py").read_bytes()
  assert mine == (ROOT / "experiments" / "quickstart.py").read_bytes()
