"""FLOPs per token against a count by hand, and MFU from them."""

import pytest
import tiny

from mtpjax import config as config_lib
from mtpjax.heads import count_params, train_flops_per_token
from mtpjax.train.hardware import peak_flops

# d_model 32, 8 attention heads of 4, 4 key/value heads, d_ff 64, vocabulary
# 248: query and out 32 x 32 each, key and value 32 x 16 each, MLP 3 x 32 x 64.
LAYER = 2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64
NORMS = 2 * 32
UNEMBEDDING = 32 * 248
T = 100


def attention(layers):
  # Scores and mixing, forward and backward, half of each row on average:
  # 3 x 2 x 2 x (T / 2) x 32 per token and layer.
  return layers * 3 * 2 * 2 * (T / 2) * 32


def flops(kind, layers=2, with_heads=True):
  heads = config_lib.Heads(kind=kind, offsets=(1, 2, 3), matched=False)
  model = tiny.multi_token_model(None, heads, n_layers=layers)
  return train_flops_per_token(model, T, with_heads)


@pytest.mark.parametrize("layers", [2, 3])
def test_flops_equal_a_count_by_hand(layers):
  trunk = 6 * (layers * LAYER + UNEMBEDDING) + attention(layers)
  # Scales of norms are counted too: 6 for each.
  norms = 6 * layers * NORMS
  assert flops("block", layers, False) == pytest.approx(trunk + norms)
  two_blocks = 6 * 2 * (LAYER + UNEMBEDDING) + attention(2) + 6 * 2 * NORMS
  assert flops("block", layers) == pytest.approx(trunk + norms + two_blocks)
  two_maps = 6 * 2 * (32 * 32 + UNEMBEDDING)
  assert flops("linear", layers) == pytest.approx(trunk + norms + two_maps)


def test_parameters_are_counted_by_part():
  heads = config_lib.Heads(offsets=(1, 2, 3), matched=False)
  model = tiny.multi_token_model(None, heads)
  assert count_params(model) == {
    "lm": 2 * (LAYER + NORMS) + 2 * UNEMBEDDING + 32,
    "heads": 2 * (LAYER + NORMS),
  }


class Device:
  def __init__(self, kind):
    self.device_kind = kind


def test_peaks_are_found_by_the_longest_name():
  for kind, tflops in [
    ("NVIDIA H100 80GB HBM3", 989), ("TPU v5 lite", 197), ("TPU v5", 459),
    ("TPU v5p", 459), ("NVIDIA A100-SXM4-80GB", 312), ("TPU v6 lite", 918),
  ]:  # fmt: skip
    assert peak_flops(Device(kind)) == tflops * 1e12
  assert peak_flops(Device("cpu")) is None
  assert peak_flops(Device("cpu"), 2.5) == 2.5e12
