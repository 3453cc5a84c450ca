"""What every kind of head promises; one is added by one file and one line."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from decoding import (
  CHAIN,
  ROOT,
  multi_token_model,
  random_params,
  random_requests,
  run,
  to_decode,
)

from mtpjax import cli
from mtpjax import config as config_lib
from mtpjax.heads import HEADS
from mtpjax.heads.kinds import kind_of
from mtpjax.heads.wiring import CHAIN as CHAINED
from mtpjax.heads.wiring import PARALLEL
from mtpjax.losses import (
  batch_targets,
  model_loss,
  offset_coefficients,
)
from mtpjax.model import block, linear


class Shift(nn.Module):
  """A toy in parallel: a residual map."""

  config: config_lib.Model
  heads: config_lib.Heads
  keeps_cache = False
  wiring = PARALLEL
  n_attention_layers = 0

  @nn.compact
  def __call__(self, hidden_BTD, context):
    del context
    c = self.config
    change = linear.Linear(
      (c.d_model,), ("embed",), ("embed_out",), c.dtype, c.param_dtype,
      name="change",
    )  # fmt: skip
    return hidden_BTD + nn.tanh(change(hidden_BTD))


class Follow(nn.Module):
  """A toy in a chain: a layer over the sum of state and next embedding."""

  config: config_lib.Model
  heads: config_lib.Heads
  keeps_cache = True
  wiring = CHAINED
  n_attention_layers = 1

  def setup(self):
    self.layer = block.Block(self.config)

  def __call__(self, hidden_BTD, context):
    return self.with_rows(hidden_BTD, context)[0]

  def with_rows(self, hidden_BTD, context):
    return self.layer(
      hidden_BTD + context.ahead_BTD, context.placement, context.cache
    )


TOYS = {"shift": Shift, "follow": Follow}
KINDS = [*HEADS, *TOYS]


@pytest.fixture(autouse=True)
def toys(monkeypatch):
  for name, toy in TOYS.items():
    monkeypatch.setitem(HEADS, name, toy)


def heads_of(kind):
  """Settings that a kind takes."""
  if kind == "none":
    return config_lib.Heads.none()
  for tap in ("before_last", "last"):
    heads = config_lib.Heads(kind=kind, tap=tap, matched=False)
    try:
      kind_of(heads)
    except ValueError:
      continue
    return heads
  raise AssertionError(kind)


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "none"])
def test_its_parameters_learn(kind):
  model = tiny.multi_token_model(None, heads_of(kind))
  params = model.init(jax.random.key(0))
  batch = {
    "tokens": jnp.arange(24).reshape(2, 12) % 19,
    "segments": jnp.ones((2, 12), jnp.int32),
    "positions": jnp.broadcast_to(jnp.arange(12), (2, 12)),
    "loss_mask": jnp.ones((2, 12), bool),
  }
  targets = batch_targets(batch, model.heads.offsets)
  coefficients_M = offset_coefficients(targets.counts_M, ())

  @jax.jit
  @jax.grad
  def gradients(params):
    return model_loss(
      model, config_lib.Loss(), params, jnp.zeros(4), batch, coefficients_M
    )[0]

  grads = gradients(params)
  # Each head of the stack, and the model under them.
  norms_M = jax.vmap(
    lambda g: sum(jnp.abs(x).sum() for x in jax.tree.leaves(g))
  )(grads["heads"])
  assert (norms_M > 0).all() and jnp.isfinite(norms_M).all()
  assert jnp.abs(grads["lm"]["embedding"]).sum() > 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_its_drafts_leave_texts_alone(kind, temperature):
  model = multi_token_model(heads_of(kind))
  params = to_decode(model, random_params(model, 6))
  asked = random_requests(6, temperature)
  plain = run(model, params, ROOT, asked)
  tree = ROOT if kind == "none" else CHAIN
  drafted = run(model, params, tree, asked)
  for one, two in zip(plain, drafted, strict=True):
    assert one.ids == two.ids
    np.testing.assert_allclose(one.logprobs, two.logprobs, rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_what_it_says_of_itself_is_so(kind):
  heads = heads_of(kind)
  model = multi_token_model(heads)
  module = model.head
  assert kind_of(heads).wiring in (PARALLEL, CHAINED)
  if module.keeps_cache:
    reads = module.wiring.reads_embeddings
    assert hasattr(module, "with_rows" if reads else "rows")
  names = jax.tree_util.tree_leaves_with_path(model.abstract().get("heads", {}))
  # A layer of attention has four products.
  queries = [p for p, _ in names if any("query" in str(k) for k in p)]
  n_layers = len([p for p in queries if "kernel" in str(p)])
  assert n_layers == module.n_attention_layers * bool(model.heads.n_extra)


@pytest.mark.parametrize("kind", TOYS)
def test_a_toy_is_one_line_away_from_the_command_line(
  kind, in_tiny_root, tmp_path, capsys
):
  workdir = str(tmp_path / kind)
  heads = dataclasses.asdict(heads_of(kind))
  argv = ["train", "tiny.py", "--workdir", workdir, "--train.steps", "2"]
  for name in ("kind", "tap", "matched"):
    argv += [f"--heads.{name}", str(heads[name]).lower()]
  assert cli.main(argv) == 0
  capsys.readouterr()
  texts = []
  for mode in ("chain", "next"):
    argv = ["generate", workdir, "--prompt", "def f1(", "--mode", mode]
    assert cli.main([*argv, "--max-new-tokens", "8"]) == 0
    texts.append(capsys.readouterr().out)
  assert texts[0] == texts[1] != ""
