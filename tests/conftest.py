"""Eight host devices, and one compilation cache for all processes of a run."""

import gc
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

import pytest

# All of this before jax is imported, and in the environment, so that programs
# started by a test share the cache.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Most time goes into compiling programs that run once on tiny arrays. XLA
# partitions them as ever, but fuses less and spends little on machine code,
# which halves the whole. Tests of memory, copies or equal bits ask for
# `programs.AS_USERS`. What XLA_FLAGS says already stays; as users do compiles
# "--xla_backend_optimization_level=3".
FLAGS = {
  "xla_force_host_platform_device_count": "8",
  "xla_backend_optimization_level": "0",
  "xla_cpu_use_fusion_emitters": "false",  # gone in jaxlib 0.12
  "xla_cpu_parallel_codegen_split_count": "1",  # one module, for one core
}
# As many memory maps as a process holds before programs are unloaded.
MANY_MAPS = 30_000


def is_known(flag):
  """Whether the installed jaxlib takes it: an unknown flag ends a process."""
  program = "import jax; jax.devices()"
  environment = os.environ | {"XLA_FLAGS": flag}
  done = subprocess.run(
    [sys.executable, "-c", program], env=environment, capture_output=True
  )
  return done.returncode == 0


# Workers inherit what the process that starts them has chosen.
if "PYTEST_XDIST_WORKER" not in os.environ:
  given = os.environ.get("XLA_FLAGS", "")
  added = [f"--{k}={v}" for k, v in FLAGS.items() if k not in given]
  if not is_known(" ".join(added)):
    added = [flag for flag in added if is_known(flag)]
  os.environ["XLA_FLAGS"] = " ".join([given, *added]).strip()
# Would silence "involuntary full rematerialization".
os.environ.pop("TF_CPP_MIN_LOG_LEVEL", None)
# Fresh for every run: a cache from yesterday tests yesterday's compiler flags.
# Whoever runs the same tests again and again may name a folder to keep.
kept_cache = os.environ.get("MTPJAX_TESTS_CACHE", "")
if "PYTEST_XDIST_WORKER" not in os.environ:
  os.environ["JAX_COMPILATION_CACHE_DIR"] = kept_cache or tempfile.mkdtemp(
    prefix="mtpjax-jax-cache-"
  )
# Writing costs a tenth of what it may save.
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
# Nobody reads which line of Python an operation comes from.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")
# Programs and what was traced stay, in millions of objects: to look through all
# of them for cycles again and again takes a tenth of the time.
gc.set_threshold(100_000, 50, 100)

# What starts the tests in the background may have them ignore signals that
# tests send to themselves and to programs, as shells and nohup do.
DEFAULTS = {
  signal.SIGINT: signal.default_int_handler,
  signal.SIGTERM: signal.SIG_DFL,
  signal.SIGHUP: signal.SIG_DFL,
}
for number, handler in DEFAULTS.items():
  if signal.getsignal(number) is signal.SIG_IGN:
    signal.signal(number, handler)


def pytest_unconfigure():
  if not kept_cache and "PYTEST_XDIST_WORKER" not in os.environ:
    shutil.rmtree(os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)


def _maps():
  """The number of memory maps of this process; 0 where none can be read."""
  try:
    with open("/proc/self/maps", "rb") as file:
      return sum(1 for _ in file)
  except OSError:
    return 0


@pytest.fixture(autouse=True, scope="module")
def release_programs():
  """Unloads all programs after a file of tests, where there are many.

  Each holds memory maps. A process may have 65,530 of them, and dies when it
  loads a program and gets no more. Until then the files of a folder share
  their programs.
  """
  yield
  if "jax" in sys.modules and _maps() > MANY_MAPS:
    sys.modules["jax"].clear_caches()
    gc.collect()


@pytest.fixture
def really_compile():
  """Switches the compilation cache off: a hit prints none of XLA's warnings."""
  import jax
  from jax.experimental.compilation_cache import compilation_cache

  jax.config.update("jax_enable_compilation_cache", False)
  compilation_cache.reset_cache()  # jax looks at the flag only once
  yield
  jax.config.update("jax_enable_compilation_cache", True)
  compilation_cache.reset_cache()


@pytest.fixture
def x64():
  """Makes float64 available to one test."""
  import jax

  with jax.enable_x64(True):
    yield


EXPERIMENT = """
from mtpjax.config import Config, Data, Heads, Model, Optim, Train


def config(variant=""):
  return Config(
    model=Model(
      d_model=32, n_layers=4, n_attention_heads=2, n_kv_heads=1, d_head=16,
      d_ff=64, dtype="float32",
    ),
    heads=Heads(offsets=(1, 2, 3)),
    data=Data(
      path="data", sources=("text:corpus/*.txt",), row_length=48,
      validation_fraction=0.4,
    ),
    optim=Optim(peak_lr=1e-2, warmup_steps=2, decay_steps=40),
    train=Train(
      steps=12, batch_size=4, log_every=4, save_every=6, eval_every=6,
      eval_batches=2,
    ),
  )
"""


@pytest.fixture(scope="session")
def tiny_root(tmp_path_factory):
  """A folder with corpus/, tiny.py, data/ and runs/quickstart/.

  Prepared and trained by the command line.
  """
  from mtpjax import cli

  root = tmp_path_factory.mktemp("tiny")
  (root / "corpus").mkdir()
  for i in range(12):
    text = f"def f{i}(x):\n  return x + {i}\n" * 40
    (root / "corpus" / f"{i}.txt").write_text(text)
  (root / "tiny.py").write_text(EXPERIMENT)
  with pytest.MonkeyPatch.context() as patch:
    patch.chdir(root)
    assert cli.main(["prepare", "tiny.py", "--json", "prepared.json"]) == 0
    arguments = ["train", "tiny.py", "--workdir", "runs/quickstart"]
    assert cli.main([*arguments, "--json", "trained.json"]) == 0
  return root


@pytest.fixture
def in_tiny_root(tiny_root, monkeypatch) -> pathlib.Path:
  monkeypatch.chdir(tiny_root)
  return tiny_root


@pytest.fixture
def fails(capsys):
  """Runs a command that must fail with one line; returns the line."""
  from mtpjax import cli

  def run(*argv):
    capsys.readouterr()
    assert cli.main(list(map(str, argv))) == 2
    line = capsys.readouterr().err
    assert line.startswith("mtpjax: error: ")
    assert line.count("\n") == 1, line
    return line

  return run
