"""The published architectures, once more: NumPy, float64, one layer at a time.

Written from the published descriptions, on the names and shapes of their
checkpoints, and sharing no code with mtpjax. Slow and plain on purpose.

Axes: T positions, D width, N query heads, K key/value heads, H head width.
"""

import numpy as np


def logits(values, tensors, ids_T):
  """Returns the logits [T, V] of one text.

  Args:
    values: what config.json says, with no field left out.
    tensors: by name, as in the checkpoint.
    ids_T: token ids.
  """
  weights = {name: np.asarray(t, np.float64) for name, t in tensors.items()}
  eps = values["rms_norm_eps"]
  x_TD = weights["model.embed_tokens.weight"][np.asarray(ids_T)]
  for i in range(values["num_hidden_layers"]):
    layer = {
      name.removeprefix(f"model.layers.{i}."): t
      for name, t in weights.items()
      if name.startswith(f"model.layers.{i}.")
    }
    normed_TD = rms_norm(x_TD, layer["input_layernorm.weight"], eps)
    x_TD = x_TD + attention(values, layer, normed_TD, i)
    normed_TD = rms_norm(x_TD, layer["post_attention_layernorm.weight"], eps)
    gate = normed_TD @ layer["mlp.gate_proj.weight"].T
    up = normed_TD @ layer["mlp.up_proj.weight"].T
    silu = gate / (1 + np.exp(-gate))
    x_TD = x_TD + (silu * up) @ layer["mlp.down_proj.weight"].T
  x_TD = rms_norm(x_TD, weights["model.norm.weight"], eps)
  tied = values["tie_word_embeddings"]
  name = "model.embed_tokens.weight" if tied else "lm_head.weight"
  return x_TD @ weights[name].T


def rms_norm(x, weight, eps):
  return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + eps) * weight


def attention(values, layer, x_TD, i):
  n_heads = values["num_attention_heads"]
  n_kv = values["num_key_value_heads"]
  d_head = values["head_dim"]
  t = len(x_TD)

  def project(name, heads):
    y = x_TD @ layer[f"self_attn.{name}_proj.weight"].T
    y = y + layer.get(f"self_attn.{name}_proj.bias", 0.0)
    return y.reshape(t, heads, d_head)

  q_TNH = project("q", n_heads)
  k_TKH = project("k", n_kv)
  v_TKH = project("v", n_kv)
  if "self_attn.q_norm.weight" in layer:
    eps = values["rms_norm_eps"]
    q_TNH = rms_norm(q_TNH, layer["self_attn.q_norm.weight"], eps)
    k_TKH = rms_norm(k_TKH, layer["self_attn.k_norm.weight"], eps)
  angles_TH = np.outer(np.arange(t), np.tile(inverse_frequencies(values), 2))
  q_TNH = rotate(q_TNH, angles_TH)
  k_TKH = rotate(k_TKH, angles_TH)
  # "repeat_kv": consecutive query heads share a key/value head.
  k_TNH = np.repeat(k_TKH, n_heads // n_kv, axis=1)
  v_TNH = np.repeat(v_TKH, n_heads // n_kv, axis=1)
  scores = np.einsum("qnh,knh->nqk", q_TNH, k_TNH) / np.sqrt(d_head)
  distance = np.arange(t)[:, None] - np.arange(t)[None, :]
  visible = distance >= 0
  window = window_of(values, i)
  if window is not None:
    visible &= distance < window
  scores = np.where(visible, scores, -np.inf)
  probs = np.exp(scores - scores.max(axis=-1, keepdims=True))
  probs /= probs.sum(axis=-1, keepdims=True)
  out = np.einsum("nqk,knh->qnh", probs, v_TNH).reshape(t, -1)
  return out @ layer["self_attn.o_proj.weight"].T


def window_of(values, i):
  """The sliding window of layer i, None where it sees everything."""
  if values["model_type"] == "mistral":
    return values["sliding_window"]
  if values["model_type"] in ("qwen2", "qwen3"):
    if values["use_sliding_window"] and i >= values["max_window_layers"]:
      return values["sliding_window"]
  return None


def rotate(x_TNH, angles_TH):
  """x cos + rotate_half(x) sin."""
  half = x_TNH.shape[-1] // 2
  turned = np.concatenate([-x_TNH[..., half:], x_TNH[..., :half]], axis=-1)
  cos, sin = np.cos(angles_TH)[:, None], np.sin(angles_TH)[:, None]
  return x_TNH * cos + turned * sin


def inverse_frequencies(values):
  """The angle per position of each of the first H / 2 components."""
  d_head = values["head_dim"]
  stated = values.get("rope_parameters") or values.get("rope_scaling") or {}
  theta = stated.get("rope_theta", values.get("rope_theta"))
  plain = [theta ** -(2 * i / d_head) for i in range(d_head // 2)]
  kind = stated.get("rope_type", stated.get("type", "default"))
  if kind == "default":
    return np.array(plain)
  factor = stated["factor"]
  if kind == "linear":
    return np.array(plain) / factor
  low, high = stated["low_freq_factor"], stated["high_freq_factor"]
  original = stated["original_max_position_embeddings"]
  found = []
  for frequency in plain:
    wavelength = 2 * np.pi / frequency
    if wavelength < original / high:
      found.append(frequency)
    elif wavelength > original / low:
      found.append(frequency / factor)
    else:
      smooth = (original / wavelength - low) / (high - low)
      found.append((1 - smooth) * frequency / factor + smooth * frequency)
  return np.array(found)
