"""A frozen trunk keeps no activations, and nothing is computed for it."""

import jax
import jax.numpy as jnp
import programs
import tiny

from mtpjax import config as config_lib
from mtpjax import parallel
from mtpjax.train import loss_and_gradients


def compiled(n_layers, is_frozen, vocab_size=248):
  heads = config_lib.Heads(
    kind="medusa", offsets=(1, 2, 3), tap="normed", matched=False
  )
  model = tiny.multi_token_model(
    None, heads, n_layers=n_layers, vocab_size=vocab_size
  )
  params = parallel.unbox(model.abstract())
  frozen = {"lm": params.pop("lm")} if is_frozen else {}
  ids = jax.ShapeDtypeStruct((8, 64), jnp.int32)
  batch = {"tokens": ids, "segments": ids, "positions": ids, "loss_mask": ids}
  loss = config_lib.Loss(chunk_tokens=64)

  def step(params, batch, frozen):
    return loss_and_gradients(model, loss, 1, params, batch, frozen)

  return programs.jit_unrun(step).lower(params, batch, frozen).compile()


def test_memory_does_not_grow_with_the_depth_of_a_frozen_trunk():
  frozen = [programs.temporary_bytes(compiled(n, True)) for n in (2, 8)]
  trained = [programs.temporary_bytes(compiled(n, False)) for n in (2, 8)]
  assert trained[1] > 1.5 * trained[0]
  assert frozen[1] < 1.05 * frozen[0]
  assert frozen[1] < trained[0]


def test_no_gradient_of_a_frozen_unembedding_is_kept():
  # [D, V] in float32 is what its gradient would need.
  v = 4096
  frozen = programs.temporary_bytes(compiled(2, True, v))
  trained = programs.temporary_bytes(compiled(2, False, v))
  assert trained - frozen > 32 * v * 4
