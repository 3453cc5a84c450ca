"""What the benches measure if nothing else is said; needs no JAX."""

from mtpjax.config import Config, Data, Heads, Loss, Model, Train

# The shape the documented figures are for: B4 T512 D256 V32000.
MEMORY = Config(
  model=Model(vocab_size=32_000, d_model=256, dtype="float32"),
  heads=Heads(kind="medusa", matched=False),
  loss=Loss(chunk_tokens=256),
  data=Data(row_length=512),
  train=Train(batch_size=4),
)
# A model that a CPU steps through in well under a second.
TRAIN = Config(
  model=Model(vocab_size=4096, d_model=256, n_layers=10, dtype="float32"),
  heads=Heads(kind="block"),
  loss=Loss(chunk_tokens=512),
  data=Data(row_length=128),
  train=Train(batch_size=4),
)
# SmolLM2's attention.
ATTENTION = Config(
  model=Model(
    d_model=576, n_attention_heads=9, n_kv_heads=3, d_head=64, dtype="float32"
  ),
  train=Train(batch_size=1),
)
# A small random model.
DECODE = Config(
  model=Model(vocab_size=4096, d_model=256, n_layers=8, dtype="float32"),
  heads=Heads(kind="block"),
)
