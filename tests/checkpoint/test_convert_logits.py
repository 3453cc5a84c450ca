"""Imported models compute what their published description says."""

import hf_checkpoints
import hf_forward
import jax.numpy as jnp
import numpy as np
import pytest

from mtpjax import parallel
from mtpjax.checkpoint.convert.formats import hf
from mtpjax.heads import MultiTokenModel
from mtpjax.model import Placement

# Of the four frequencies of 8 components, 128 positions turn the first more
# than 4 times, the second between once and 4 times, the others less.
LLAMA3 = {
  "factor": 8.0,
  "low_freq_factor": 1.0,
  "high_freq_factor": 4.0,
  "original_max_position_embeddings": 128,
}
CASES = {
  "llama": ("llama", {}),
  "llama of even heads": ("llama", {"head_dim": 6}),
  "llama tied": ("llama", {"tie_word_embeddings": True}),
  "llama linear": (
    "llama",
    {"rope_scaling": {"type": "linear", "factor": 2.5}},
  ),
  "llama3": ("llama", {"rope_scaling": LLAMA3 | {"rope_type": "llama3"}}),
  "llama3, newest spelling": (
    "llama",
    {
      "rope_theta": None,
      "rope_parameters": LLAMA3 | {"rope_type": "llama3", "rope_theta": 5e3},
    },
  ),
  "mistral": ("mistral", {}),
  "mistral without window": ("mistral", {"sliding_window": None}),
  "qwen2": ("qwen2", {"rms_norm_eps": 1e-6, "rope_theta": 1e6}),
  "qwen2 tied": ("qwen2", {"tie_word_embeddings": True}),
  "qwen2, all layers windowed": (
    "qwen2",
    {"use_sliding_window": True, "max_window_layers": 0},
  ),
  "qwen3": ("qwen3", {}),
  "qwen3 of one key/value head": ("qwen3", {"num_key_value_heads": 1}),
}


@pytest.mark.parametrize("family, changes", CASES.values(), ids=CASES)
def test_logits_are_those_of_the_published_forward(tmp_path, family, changes):
  values = hf_checkpoints.config_values(family, **changes)
  tensors = hf_checkpoints.random_tensors(values)
  hf_checkpoints.write(tmp_path, values, tensors)
  # Longer than the window of 5; ids up to the padded end of the vocabulary.
  ids_T = np.random.default_rng(1).integers(0, 48, 13)
  ids_T[-2:] = 47, 40
  expected_TV = hf_forward.logits(values, tensors, ids_T)

  source = hf.open(tmp_path)
  model = MultiTokenModel(
    source.model, source.heads, parallel.single_device_mesh()
  )
  params = source.load(model)
  tokens_BT = jnp.asarray(ids_T)[None]
  positions_BT = jnp.arange(13)[None]
  hidden_BTD = model.apply_trunk(
    params["lm"], tokens_BT, Placement.packed(positions_BT, tokens_BT * 0 + 1)
  ).hidden_BTD
  got_TV = model.trunk.logits(params["lm"], hidden_BTD)[0]
  error = np.max(np.abs(np.asarray(got_TV, np.float64) - expected_TV))
  assert error <= 1e-5 * np.max(np.abs(expected_TV))


def test_the_published_forward_sees_what_it_should():
  """What the comparison above rests on, at one point each."""
  values = hf_checkpoints.config_values("mistral")
  tensors = hf_checkpoints.random_tensors(values)
  ids_T = np.arange(13)
  other_T = ids_T.copy()
  other_T[3] = 30
  before, after = (hf_forward.logits(values, tensors, t)
                   for t in (ids_T, other_T))  # fmt: skip
  changed_T = np.any(before != after, axis=-1)
  # Two layers of a window of 5 reach 2 x 4 positions back.
  assert list(np.flatnonzero(changed_T)) == list(range(3, 12))


def test_one_head_and_one_position_by_hand():
  """Attention to itself alone returns its own value."""
  values = hf_checkpoints.config_values("llama", num_hidden_layers=1)
  tensors = hf_checkpoints.random_tensors(values)
  layer = {
    name.removeprefix("model.layers.0."): t for name, t in tensors.items()
  }
  x_TD = np.random.default_rng(0).normal(size=(1, 24))
  got_TD = hf_forward.attention(values, layer, x_TD, 0)
  v_KH = (x_TD @ layer["self_attn.v_proj.weight"].T).reshape(2, 8)
  expected_TD = layer["self_attn.o_proj.weight"] @ v_KH[[0, 0, 1, 1]].ravel()
  np.testing.assert_allclose(got_TD[0], expected_TD, rtol=1e-5)
