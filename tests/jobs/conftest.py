"""One tiny run, prepared and trained by the command line, for all job tests."""

import pathlib

import pytest

from mtpjax import cli, decode
from mtpjax.progress import Progress

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
  """A folder with corpus/, tiny.py, data/ and runs/quickstart/."""
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
def decodes(monkeypatch):
  """Nothing is decoded; the list of what was asked, call by call.

  Each entry holds the arguments of `decode.generate` by name.
  """
  calls = []
  names = "specs params requests eos_ids batch passes find_stop governor"

  def generate(*args):
    calls.append(dict(zip(names.split(), args, strict=True)))
    result = decode.Result((10,), (0.0,), "length", 1, 0, (0,))
    yield dict.fromkeys(range(len(calls[-1]["requests"])), result)

  monkeypatch.setattr(decode, "generate", generate)
  return calls


@pytest.fixture
def fails(capsys):
  """Runs a command that must fail with one line; returns the line."""

  def run(*argv):
    capsys.readouterr()
    assert cli.main(list(map(str, argv))) == 2
    line = capsys.readouterr().err
    assert line.startswith("mtpjax: error: ")
    assert line.count("\n") == 1, line
    return line

  return run


@pytest.fixture
def shown(monkeypatch):
  """Lists what is shown: [text, total, done at the end], one after another."""
  seen = []

  def start(self):
    seen.append([self._text, self._total, 0])
    return self

  def update(self, done=None, text=None):
    seen[-1][2] = done

  monkeypatch.setattr(Progress, "__enter__", start)
  monkeypatch.setattr(Progress, "__exit__", lambda self, *_: None)
  monkeypatch.setattr(Progress, "update", update)
  return seen
