"""A small byte-level model of Python code with four heads.

  mtpjax prepare experiments/quickstart.py
  mtpjax train experiments/quickstart.py --workdir runs/quickstart

Hardware: two CPU cores, about five minutes.
"""

from mtpjax.config import (
  Config,
  Data,
  Heads,
  Loss,
  Mesh,
  Model,
  Optim,
  Train,
)


def config() -> Config:
  """Returns the experiment."""
  return Config(
    model=Model(
      d_model=192,
      n_layers=5,
      n_attention_heads=6,
      n_kv_heads=3,
      d_head=32,
      d_ff=512,
      dtype="float32",
    ),
    heads=Heads(kind="block", offsets=(1, 2, 3, 4)),
    loss=Loss(chunk_tokens=4096),
    data=Data(
      path="runs/data/python-stdlib",
      sources=("python-stdlib",),
      row_length=256,
    ),
    optim=Optim(peak_lr=3e-3, warmup_steps=40, decay_steps=700),
    mesh=Mesh(),
    train=Train(
      steps=700,
      batch_size=16,
      log_every=20,
      eval_every=350,
      eval_batches=8,
      save_every=350,
    ),
  )
