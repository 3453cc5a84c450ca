"""A model small enough to compile in seconds, and packed rows for it."""

import jax
import jax.numpy as jnp
import numpy as np

from mtpjax import config as config_lib
from mtpjax import heads, losses, parallel


def model_config(**changes):
  # A vocabulary of 8 x 31: cut or whole, its sizes occur nowhere else.
  sizes = dict(
    vocab_size=248,
    d_model=32,
    n_layers=2,
    n_attention_heads=8,
    n_kv_heads=4,
    d_head=4,
    d_ff=64,
    dtype="float32",
  )
  return config_lib.Model(**(sizes | changes))


def multi_token_model(mesh=None, heads_config=None, **changes):
  if heads_config is None:
    heads_config = config_lib.Heads(matched=False)
  mesh = parallel.single_device_mesh() if mesh is None else mesh
  return heads.MultiTokenModel(model_config(**changes), heads_config, mesh)


def positions(segments_BT):
  """Positions within the document, by counting."""
  out_BT = np.zeros_like(segments_BT)
  for b, row_T in enumerate(segments_BT):
    for t in range(1, len(row_T)):
      if row_T[t] == row_T[t - 1]:
        out_BT[b, t] = out_BT[b, t - 1] + 1
  return out_BT


def pack(rows, length, vocab_size=248, masks=None):
  """Packs documents into rows.

  Args:
    rows: per row, a list of documents (lists of ids).
    length: tokens per row; what is left is padding with id 0.
    masks: like `rows`, with booleans; all True if None.
  """
  tokens_BT = np.zeros((len(rows), length), np.int32)
  segments_BT = np.zeros((len(rows), length), np.int32)
  mask_BT = np.zeros((len(rows), length), bool)
  for b, documents in enumerate(rows):
    start = 0
    for i, document in enumerate(documents):
      end = start + len(document)
      assert end <= length and max(document) < vocab_size
      tokens_BT[b, start:end] = document
      segments_BT[b, start:end] = i + 1
      mask_BT[b, start:end] = True if masks is None else masks[b][i]
      start = end
  return dict(
    tokens=tokens_BT,
    segments=segments_BT,
    positions=positions(segments_BT),
    loss_mask=mask_BT,
  )


def random_params(abstract, seed, scale=0.3):
  """Parameters that are neither zero nor one anywhere, as NumPy arrays."""
  rng = np.random.default_rng(seed)
  return jax.tree.map(
    lambda leaf: (scale * rng.normal(size=leaf.shape)).astype(leaf.dtype),
    parallel.unbox(abstract),
  )


def loss_function(model, loss=None):
  """(params, probes_M, batch, weights_M) -> (loss, sums), the real one."""
  loss = config_lib.Loss(chunk_tokens=7) if loss is None else loss

  def f(params, probes_M, batch, weights_M):
    counts_M = losses.batch_targets(batch, model.heads.offsets).counts_M
    coefficients_M = weights_M * losses.offset_coefficients(counts_M, ())
    return losses.model_loss(
      model, loss, params, probes_M, batch, coefficients_M
    )

  return f


def value_and_grad(model, loss=None):
  """Of the loss, by parameters and probes."""
  return jax.value_and_grad(
    loss_function(model, loss), argnums=(0, 1), has_aux=True
  )


def ones(model):
  return jnp.ones(len(model.heads.offsets))


def assert_close(actual, expected, relative):
  """Compares trees leaf by leaf: largest error over largest value."""
  expected_leaves, structure = jax.tree.flatten(expected)
  assert jax.tree.structure(actual) == structure
  leaves = zip(jax.tree.leaves(actual), expected_leaves, strict=True)
  for got, want in leaves:
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape
    error = np.max(np.abs(got - want), initial=0)
    assert error <= relative * np.max(np.abs(want), initial=0), (
      error,
      np.max(np.abs(want)),
    )
