"""Cutting a block at EOS, stop sequence and budget, against plain Python."""

import jax.numpy as jnp
import numpy as np
import pytest

from mtpjax.decode import endings


def cut(block, eos_ids, is_stop, budget):
  """Takes tokens one by one."""
  taken = 0
  for token, stops in zip(block, is_stop, strict=False):
    taken += 1
    if token in eos_ids:
      return taken, "eos"
    if stops:
      return taken, "stop"
    if taken == budget:
      return taken, "length"
  return taken, "running"


@pytest.mark.parametrize("has_stops", [False, True])
def test_truncate_takes_tokens_until_something_ends_the_text(has_stops):
  rng = np.random.default_rng(1)
  rows, j = 3000, 4
  tokens_BJ = rng.integers(0, 6, (rows, j))
  n_tokens_B = rng.integers(1, j + 1, rows)
  budget_B = rng.integers(1, 7, rows)
  finish_B = rng.choice([0, 0, 0, 1, 2, 3], rows)
  is_stop_BJ = rng.random((rows, j)) < (0.2 if has_stops else 0)
  eos_ids_E = np.array([4, 5, -1, -1])
  n_B, after_B = endings.truncate(
    jnp.asarray(tokens_BJ),
    jnp.asarray(n_tokens_B),
    jnp.asarray(eos_ids_E),
    jnp.asarray(is_stop_BJ) if has_stops else None,
    jnp.asarray(budget_B),
    jnp.asarray(finish_B),
  )
  seen = set()
  for b in range(rows):
    if finish_B[b] != endings.RUNNING:
      assert (n_B[b], after_B[b]) == (0, finish_B[b])
      continue
    block = tokens_BJ[b, : n_tokens_B[b]]
    n, reason = cut(block, (4, 5), is_stop_BJ[b], budget_B[b])
    assert n_B[b] == n
    assert endings.FINISH_REASONS[after_B[b]] == reason
    seen.add((n, reason))
  # Each ending at any of the four positions, and none.
  reasons = ["eos", "length", "running"] + ["stop"] * has_stops
  assert seen >= {(n, r) for n in range(1, 5) for r in reasons}
