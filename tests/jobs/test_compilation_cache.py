import os
import subprocess
import sys

import pytest

from mtpjax import cli
from mtpjax.cli import compilation_cache
from mtpjax.jobs import prepare

DIR = "JAX_COMPILATION_CACHE_DIR"
PROGRAM = """
from mtpjax.cli import compilation_cache
with compilation_cache.kept():
  import collections
  import jax
  events = collections.Counter()
  jax.monitoring.register_event_listener(lambda e, **_: events.update([e]))
  print(jax.jit(lambda x: x * 2 + 1)(jax.numpy.arange(3)))
  print(events["/jax/compilation_cache/cache_hits"],
        events["/jax/compilation_cache/cache_misses"])
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
  """The user's cache folder, where nothing else is set."""
  monkeypatch.delenv(DIR)
  monkeypatch.delenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS")
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
  return tmp_path / "cache"


def folder_of_now():
  before = dict(os.environ)
  with compilation_cache.kept():
    folder = os.environ.get(DIR)
  assert dict(os.environ) == before
  return folder


def test_the_second_process_compiles_nothing_and_damage_is_no_error(home):
  def run():
    done = subprocess.run(
      [sys.executable, "-c", PROGRAM], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    values, counts = done.stdout.splitlines()
    assert values == "[1 3 5]"
    return tuple(map(int, counts.split()))

  hits, misses = run()
  assert hits == 0 < misses
  assert run() == (misses, 0)
  [folder] = (home / "mtpjax" / "compiled").iterdir()
  entries = list(folder.glob("*-cache"))
  for entry in entries:
    entry.write_bytes(entry.read_bytes()[:-40])
  assert run()[0] == 0
  # JAX keeps what it can't read; the next command begins anew.
  assert folder_of_now() == str(folder)
  assert not list(folder.glob("*-cache"))
  assert run() == (0, misses)


def test_a_command_keeps_what_it_compiles(home, tmp_path, monkeypatch):
  seen = []

  def run(*_):
    seen.append(os.environ.get(DIR))

  monkeypatch.setattr(prepare, "run", run)
  path = tmp_path / "a.py"
  path.write_text("from mtpjax.config import Config as config\n")
  assert not cli.main(["prepare", str(path)])
  assert seen[0] and seen[0].startswith(str(home))


def test_the_users_word_is_last(home, tmp_path, monkeypatch):
  with compilation_cache.kept():
    assert int(os.environ["JAX_COMPILATION_CACHE_MAX_SIZE"]) == 512 << 20
  monkeypatch.setenv("JAX_COMPILATION_CACHE_MAX_SIZE", "7")
  with compilation_cache.kept():
    assert os.environ["JAX_COMPILATION_CACHE_MAX_SIZE"] == "7"
  for value, is_off in (("1", True), ("yes", True), ("0", False), ("", False)):
    monkeypatch.setenv(compilation_cache.OFF, value)
    assert (folder_of_now() is None) == is_off
  monkeypatch.setenv(DIR, str(tmp_path / "mine"))
  before = dict(os.environ)
  with compilation_cache.kept():
    assert dict(os.environ) == before
  assert not (tmp_path / "mine").exists()


def test_a_relative_folder_counts_as_not_given(home, tmp_path, monkeypatch):
  monkeypatch.setenv("HOME", str(tmp_path))
  for value in ("cache", ""):
    monkeypatch.setenv("XDG_CACHE_HOME", value)
    folder = folder_of_now()
    assert folder.startswith(str(tmp_path / ".cache" / "mtpjax"))


def test_where_nothing_can_be_kept_nothing_is(home, tmp_path, monkeypatch):
  (tmp_path / "file").touch()
  for place in (tmp_path / "file", tmp_path / "file" / "a"):
    monkeypatch.setenv("XDG_CACHE_HOME", str(place))
    assert folder_of_now() is None
  monkeypatch.setenv("XDG_CACHE_HOME", "/proc/none")  # for root, too
  assert folder_of_now() is None
  monkeypatch.delenv("XDG_CACHE_HOME")
  for unset in ("", "none"):
    monkeypatch.setenv("HOME", unset)
    assert folder_of_now() is None

  def no_home():
    raise RuntimeError("Could not determine home directory.")

  monkeypatch.setattr("pathlib.Path.home", no_home)
  assert folder_of_now() is None


def test_a_lock_that_cannot_be_had_is_no_error(home):
  folder = folder_of_now()
  os.remove(f"{folder}/.lockfile")
  os.mkdir(f"{folder}/.lockfile")
  assert folder_of_now() is None


def test_nobody_elses_folder_is_used(home, monkeypatch):
  assert folder_of_now()
  me = os.geteuid()
  monkeypatch.setattr(os, "geteuid", lambda: me + 1)
  assert folder_of_now() is None


X86 = """vendor_id : GenuineIntel
model name : Xeon
cpu MHz : 2000.1
flags : fpu sse avx2
"""
ARM = """Features : fp asimd sve
CPU implementer : 0x41
CPU part : 0xd40
"""


@pytest.mark.parametrize("text", [X86, ARM])
def test_processors_that_differ_have_folders_of_their_own(
  home, tmp_path, monkeypatch, text
):
  file = tmp_path / "cpuinfo"
  monkeypatch.setattr(compilation_cache, "_CPUINFO", file)

  def folder(text):
    file.write_text(text)
    return folder_of_now()

  names = [
    folder(text), folder(text + "avx512f : no\n"), folder(text + "\n" + text),
    folder(text.replace("2000.1", "1999.9")),
  ]  # fmt: skip
  assert len(set(names)) == 1
  fewer = text.replace(" avx2", "").replace(" sve", "")
  other = text.replace("Xeon", "Core").replace("0xd40", "0xd0c")
  assert len({names[0], folder(fewer), folder(other)}) == 3
  # Where processors can't be told apart, machines are.
  file.unlink()
  monkeypatch.setattr("platform.node", lambda: "one")
  one = folder_of_now()
  monkeypatch.setattr("platform.node", lambda: "two")
  assert one != folder_of_now()


def test_what_is_in_pieces_too_much_or_long_unused_goes(home, monkeypatch):
  from pathlib import Path

  folder = Path(folder_of_now())

  def write(key, *suffixes, used=0.0):
    for suffix in suffixes:
      (folder / f"{key}-{suffix}").write_bytes(b"x")
      os.utime(folder / f"{key}-{suffix}", (used, used))

  write("half", "cache")
  write("other", "atime")
  for i in range(6):
    write(f"k{i}", "cache", "atime", used=1000.0 - i)
  old, new = folder.parent / "old", folder.parent / "new"
  old.mkdir()
  new.mkdir()
  os.utime(old, (0, 0))
  assert folder_of_now()
  keys = {f"k{i}-{s}" for i in range(6) for s in ("cache", "atime")}
  assert {p.name for p in folder.iterdir()} == keys | {".lockfile"}
  assert new.exists() and not old.exists()
  monkeypatch.setattr(compilation_cache, "_MAX_ENTRIES", 5)
  assert folder_of_now()
  assert {p.name for p in folder.glob("*-cache")} == {
    "k0-cache", "k1-cache", "k2-cache"
  }  # fmt: skip
