"""A small byte-level model of Python code with heads for offsets 1 to 4.

  mtpjax prepare experiments/quickstart.py
  mtpjax train experiments/quickstart.py --workdir runs/quickstart

Hardware: two CPU cores, about five minutes. Expected: a loss of 1.6 nats per
byte at offset 1, and 2.5 or more tokens per pass.
"""

from mtpjax.config import (
  Config,
  Data,
  Heads,
  Loss,
  Model,
  Optim,
  Train,
)


def config() -> Config:
  """Returns the experiment."""
  return Config(
    model=Model(
      d_model=128,
      n_layers=9,
      n_attention_heads=4,
      n_kv_heads=2,
      d_head=32,
      d_ff=320,
      dtype="float32",
    ),
    heads=Heads(kind="block", offsets=(1, 2, 3, 4)),
    loss=Loss(chunk_tokens=1024),
    data=Data(
      path="runs/data/python-stdlib",
      sources=("python-stdlib",),
      row_length=192,
    ),
    optim=Optim(peak_lr=4e-3, warmup_steps=40, decay_steps=600),
    train=Train(
      steps=600,
      batch_size=8,
      log_every=25,
      eval_every=300,
      eval_batches=8,
      save_every=300,
    ),
  )
