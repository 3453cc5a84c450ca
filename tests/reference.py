"""The model's layers, written again in NumPy with loops over heads."""

import numpy as np


def silu(x):
  return x / (1 + np.exp(-x))


def rms_norm(scale_D, x, epsilon):
  return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + epsilon) * scale_D


def rotate(x_H, position, theta):
  """Rotates one vector, pair by pair, as complex numbers."""
  half = len(x_H) // 2
  out_H = np.empty_like(x_H)
  for i in range(half):
    angle = position * theta ** (-i / half)
    turned = complex(x_H[i], x_H[i + half]) * np.exp(1j * angle)
    out_H[i], out_H[i + half] = turned.real, turned.imag
  return out_H


def multi_head_attention(q_TNH, k_TNH, v_TNH, may_read):
  """Softmax attention, one attention head and one query at a time."""
  n_rows, n_heads, width = q_TNH.shape
  out_TNH = np.zeros_like(q_TNH)
  for n in range(n_heads):
    for t in range(n_rows):
      keys = [s for s in range(n_rows) if may_read(t, s)]
      scores = np.array([q_TNH[t, n] @ k_TNH[s, n] for s in keys])
      weights = np.exp(scores / np.sqrt(width))
      weights /= weights.sum()
      for s, weight in zip(keys, weights, strict=True):
        out_TNH[t, n] += weight * v_TNH[s, n]
  return out_TNH


def block(params, x_TD, positions_T, segments_T, config):
  """One transformer layer on one row of packed documents."""
  y_TD = rms_norm(params["attention_norm"]["scale"], x_TD, config.norm_eps)

  def heads(name):
    return np.einsum("td,dnh->tnh", y_TD, params["attention"][name]["kernel"])

  def turned(x_TNH):
    return np.array(
      [
        [rotate(x_H, position, config.rope_theta) for x_H in x_NH]
        for x_NH, position in zip(x_TNH, positions_T, strict=True)
      ]
    )

  # Multi-head attention in which groups of queries see the same key heads.
  group = config.n_attention_heads // config.n_kv_heads
  mixed_TNH = multi_head_attention(
    turned(heads("query")),
    np.repeat(turned(heads("key")), group, axis=1),
    np.repeat(heads("value"), group, axis=1),
    lambda t, s: s <= t and segments_T[s] == segments_T[t],
  )
  x_TD = x_TD + np.einsum(
    "tnh,nhd->td", mixed_TNH, params["attention"]["out"]["kernel"]
  )
  y_TD = rms_norm(params["mlp_norm"]["scale"], x_TD, config.norm_eps)
  mlp = {name: part["kernel"] for name, part in params["mlp"].items()}
  return x_TD + (silu(y_TD @ mlp["gate"]) * (y_TD @ mlp["up"])) @ mlp["down"]


def head(kind, params, tap_BTD, batch, config):
  """One extra head on all rows."""
  if kind == "linear":
    return tap_BTD @ params["map"]["kernel"]
  if kind == "medusa":
    return tap_BTD + silu(tap_BTD @ params["map"]["kernel"] + params["bias"])
  return np.stack(
    [
      block(params["layer"], tap_TD, positions_T, segments_T, config)
      for tap_TD, positions_T, segments_T in zip(
        tap_BTD, batch["positions"], batch["segments"], strict=True
      )
    ]
  )


def offset_sums(hidden_BTD, unembedding_DV, batch, offset, z_loss=0.0):
  """Loops over positions; returns (nll, objective, correct, count)."""
  nll = objective = 0.0
  correct = count = 0
  tokens_BT, segments_BT = batch["tokens"], batch["segments"]
  n_rows, length = tokens_BT.shape
  for b in range(n_rows):
    for t in range(length):
      target = t + offset
      if target >= length or segments_BT[b, target] == 0:
        continue
      if segments_BT[b, target] != segments_BT[b, t]:
        continue
      if not batch["loss_mask"][b, target]:
        continue
      logits_V = hidden_BTD[b, t] @ unembedding_DV
      log_normaliser = np.log(np.sum(np.exp(logits_V)))
      here = log_normaliser - logits_V[tokens_BT[b, target]]
      nll += here
      objective += here + z_loss * log_normaliser**2
      correct += int(np.argmax(logits_V) == tokens_BT[b, target])
      count += 1
  return nll, objective, correct, count
