"""A small byte-level model of Python code with heads for offsets 1 to 4.

  mtpjax prepare quickstart
  mtpjax train quickstart --workdir runs/quickstart

Hardware: two CPU cores, about three minutes. Expected: a loss of 1.5 nats per
byte at offset 1, and about two tokens per pass.

The heads are of the kind `medusa`: on a trunk this small three heads that are
layers of their own (`--heads.kind block`) cost as much per pass as half the
trunk, so that drafts pay less surely on a CPU.
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
      d_model=96,
      n_layers=8,
      n_attention_heads=3,
      n_kv_heads=1,
      d_head=32,
      d_ff=256,
      dtype="float32",
    ),
    heads=Heads(kind="medusa", offsets=(1, 2, 3, 4)),
    loss=Loss(chunk_tokens=1024),
    data=Data(
      path="runs/data/python-stdlib",
      sources=("python-stdlib",),
      row_length=192,
    ),
    optim=Optim(peak_lr=4e-3, warmup_steps=40, decay_steps=900),
    train=Train(
      steps=900,
      batch_size=8,
      log_every=25,
      eval_every=450,
      eval_batches=8,
      save_every=450,
    ),
  )
