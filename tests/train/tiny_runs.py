"""A tiny experiment with prepared text, and what its runs leave behind."""

import dataclasses
import io
import json

import jax
import numpy as np
import rich.console

from mtpjax import config as config_lib
from mtpjax import parallel
from mtpjax.checkpoint import Store, WorkDir
from mtpjax.heads import MultiTokenModel
from mtpjax.jobs import prepare
from mtpjax.jobs import train as train_job
from mtpjax.train import abstract_state, make_optimizer

TIMES = ("tokens_per_sec", "step_secs", "mfu", "mfu_without_heads")


def config(data_path, text_glob, **changes):
  """20 steps, saved every 5; `changes` by path, with `__` for the dot."""
  base = config_lib.Config(
    model=config_lib.Model(
      d_model=16,
      n_layers=2,
      n_attention_heads=2,
      n_kv_heads=2,
      d_head=4,
      d_ff=16,
      dtype="float32",
    ),
    heads=config_lib.Heads(offsets=(1, 2, 3), matched=False),
    loss=config_lib.Loss(chunk_tokens=32),
    data=config_lib.Data(
      path=str(data_path),
      sources=(text_glob,),
      row_length=16,
      validation_fraction=0.3,
    ),
    optim=config_lib.Optim(peak_lr=1e-2, warmup_steps=3, decay_steps=40),
    train=config_lib.Train(
      steps=20,
      batch_size=8,
      log_every=2,
      eval_every=10,
      eval_batches=1,
      save_every=5,
    ),
  )
  return config_lib.override(
    base, {path.replace("__", "."): v for path, v in changes.items()}
  )


def prepared(folder):
  """Writes and prepares texts; returns their configuration."""
  texts = folder / "texts"
  texts.mkdir()
  for i in range(20):
    words = " ".join(f"{i}:{j}" for j in range(1 + i % 7))
    (texts / f"{i:02}.txt").write_text(words)
  made = config(folder / "data", f"text:{texts}/*.txt")
  prepare.run(made, quiet())
  return made


def quiet():
  return rich.console.Console(file=io.StringIO(), width=200)


class Crash(Exception):
  pass


class Console(rich.console.Console):
  """Keeps what is printed; may raise when a text turns up."""

  def __init__(self, crash_at=None):
    super().__init__(file=io.StringIO(), width=200)
    self.crash_at = crash_at

  def print(self, *objects, **options):
    super().print(*objects, **options)
    if self.crash_at and str(objects[0]).startswith(self.crash_at):
      raise Crash

  @property
  def text(self):
    return self.file.getvalue()


def run(made, workdir, crash_at=None):
  """Runs the job; returns (result, what was printed)."""
  console = Console(crash_at)
  result = train_job.run(made, workdir, console)
  return result, console.text


def lines(workdir):
  """Returns the lines of metrics.jsonl without times."""
  text = (workdir / "metrics.jsonl").read_text()
  return [
    {k: v for k, v in json.loads(line).items() if k not in TIMES}
    for line in text.splitlines()
  ]


def with_vocabulary(made):
  model = dataclasses.replace(made.model, vocab_size=258)
  return dataclasses.replace(made, model=model)


def parts(made, mesh=None):
  """Returns (model, optimizer) of a configuration."""
  made = with_vocabulary(made)
  mesh = parallel.single_device_mesh() if mesh is None else mesh
  model = MultiTokenModel(made.model, made.heads, mesh)
  return model, make_optimizer(made.optim, model.abstract())


def saved_steps(workdir):
  with Store(WorkDir(workdir).checkpoints) as store:
    return store.steps()


def saved_state(made, workdir, step=None):
  """Returns the state of a checkpoint as NumPy arrays."""
  with Store(WorkDir(workdir).checkpoints) as store:
    state, _ = store.restore(abstract_state(*parts(made)), step)
  return jax.device_get(state)


def assert_bit_equal(one, two):
  leaves, structure = jax.tree.flatten(one)
  assert jax.tree.structure(two) == structure
  for a, b in zip(leaves, jax.tree.leaves(two), strict=True):
    a, b = np.asarray(a), np.asarray(b)
    assert a.dtype == b.dtype and a.tobytes() == b.tobytes()


def one_line(error):
  text = str(error.value)
  assert "\n" not in text
  return text
