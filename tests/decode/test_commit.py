"""Writing an accepted path into the cache, against NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest

from mtpjax import config as config_lib
from mtpjax.model import KeyValues, cache

K, S, H, Q, J = 2, 13, 4, 7, 3


def key_values(seed, batch, rows):
  rng = np.random.default_rng(seed)
  return KeyValues(*rng.normal(size=(2, batch, K, rows, H)).astype(np.float32))


@pytest.mark.parametrize("batch", [1, 3])
def test_commit_writes_the_path_behind_each_rows_own_length(batch):
  rng = np.random.default_rng(batch)
  old, rows = key_values(0, batch, S), key_values(1, batch, Q)
  last_fit = S - J
  starts = [[0] * batch, [last_fit] * batch]
  starts += rng.integers(0, last_fit + 1, (5, batch)).tolist()
  for start_B in starts:
    path_BJ = rng.integers(0, Q, (batch, J))
    new = cache.commit(old, rows, jnp.asarray(path_BJ), jnp.asarray(start_B))
    for name in ("keys_BKSH", "values_BKSH"):
      want = np.array(getattr(old, name))
      for b in range(batch):
        for j in range(J):
          want[b, :, start_B[b] + j] = getattr(rows, name)[b, :, path_BJ[b, j]]
      np.testing.assert_array_equal(getattr(new, name), want)


def test_fill_writes_a_prompt_at_the_beginning_and_empty_is_empty():
  config = config_lib.Model(n_kv_heads=K, d_head=H, dtype="bfloat16")
  new = cache.fill(cache.empty(config, 2, S), key_values(1, 2, Q))
  want = np.asarray(key_values(1, 2, Q).values_BKSH)
  assert new.values_BKSH.shape == (2, K, S, H)
  assert new.values_BKSH.dtype == jnp.bfloat16
  np.testing.assert_array_equal(
    new.values_BKSH[:, :, :Q], want.astype(jnp.bfloat16)
  )
  assert not np.asarray(new.values_BKSH[:, :, Q:], np.float32).any()
