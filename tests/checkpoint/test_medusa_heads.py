"""Published Medusa heads in and out: both layouts, values, logits, refusals."""

import dataclasses
import json

import conversions
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
import tiny
import write_torch

from mtpjax import parallel
from mtpjax.checkpoint.convert.formats import medusa
from mtpjax.errors import UserError

WIDTH, VOCAB = 16, 24


def published(n_heads=3, n_layers=1, own=True, prefix="", dtype=np.float32):
  """Random heads by the names they are published under."""
  rng = np.random.default_rng(0)
  found = {}
  for head in range(n_heads):
    for layer in range(n_layers):
      stem = f"{prefix}{head}.{layer}.linear"
      found[f"{stem}.weight"] = rng.normal(size=(WIDTH, WIDTH))
      found[f"{stem}.bias"] = rng.normal(size=WIDTH)
    if own:
      name = f"{prefix}{head}.{n_layers}.weight"
      found[name] = rng.normal(size=(VOCAB, WIDTH))
  return {name: (0.3 * a).astype(dtype) for name, a in found.items()}


def write(path, tensors, config=None):
  if path.suffix == ".pt":
    write_torch.write_torch(path, tensors)
  else:
    safetensors.numpy.save_file(tensors, path)
  if config is not None:
    (path.parent / "config.json").write_text(json.dumps(config))


def model_of(heads, mesh=None, **changes):
  sizes = dict(vocab_size=VOCAB, d_model=WIDTH, d_ff=16, n_layers=1)
  return tiny.multi_token_model(mesh, heads, **(sizes | changes))


def numpy_logits(tensors, unembedding_VD, hidden_D, n_layers):
  """All heads at one position, from the published formula."""
  tensors = {name: np.asarray(t, np.float64) for name, t in tensors.items()}
  n_heads = 1 + max(int(name.split(".")[0]) for name in tensors)
  rows = []
  for head in range(n_heads):
    x_D = hidden_D
    for layer in range(n_layers):
      weight = tensors[f"{head}.{layer}.linear.weight"]
      y_D = weight @ x_D + tensors[f"{head}.{layer}.linear.bias"]
      x_D = x_D + y_D / (1 + np.exp(-y_D))
    rows.append(tensors.get(f"{head}.{n_layers}.weight", unembedding_VD) @ x_D)
  return np.array(rows)


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
@pytest.mark.parametrize(
  "n_layers, own", [(1, True), (1, False), (2, True), (2, False)]
)
def test_logits_match_the_published_formula(tmp_path, suffix, n_layers, own):
  tensors = published(n_layers=n_layers, own=own)
  path = tmp_path / f"medusa_lm_head{suffix}"
  write(path, tensors)
  for given in (tmp_path, path):
    opened = medusa.open(given)
    assert opened.notes == () and opened.origin["base_name"] == ""
    assert dataclasses.asdict(opened.heads) == dict(
      kind="medusa", offsets=(1, 2, 3, 4), tap="normed", matched=False,
      n_layers=n_layers, unembedding="copied" if own else "shared",
    )  # fmt: skip
  model = model_of(opened.heads)
  stacked = opened.load(model)["heads"]
  rng = np.random.default_rng(1)
  lm = {"unembedding": jnp.asarray(rng.normal(size=(WIDTH, VOCAB)), "float32")}
  unstacked = tuple(
    jax.tree.map(lambda leaf, i=i: leaf[i], stacked) for i in range(3)
  )
  hidden_D = rng.normal(size=WIDTH)
  hidden_BTD = jnp.asarray(hidden_D, "float32")[None, None]
  normed = [
    model.apply_head(head, None, hidden_BTD, None) for head in unstacked
  ]
  logits_BMV = model.head_logits({"lm": lm, "heads": unstacked}, normed)
  np.testing.assert_allclose(
    logits_BMV[0],
    numpy_logits(tensors, np.asarray(lm["unembedding"]).T, hidden_D, n_layers),
    atol=1e-5,
  )


def test_heads_of_a_whole_checkpoint(tmp_path):
  tensors = published(own=True, prefix="medusa_head.")
  rest = {"model.norm.weight": np.ones(WIDTH, np.float32)}
  write(tmp_path / "model.safetensors", tensors | rest)
  opened = medusa.open(tmp_path)
  assert opened.heads.offsets == (1, 2, 3, 4)
  params = opened.load(model_of(opened.heads))["heads"]
  for head in range(3):
    np.testing.assert_array_equal(
      params["map"]["kernel"][head],
      tensors[f"medusa_head.{head}.0.linear.weight"].T,
    )
    np.testing.assert_array_equal(
      params["unembedding"][head], tensors[f"medusa_head.{head}.1.weight"].T
    )


def test_the_file_is_counted_not_the_config(tmp_path):
  config = {
    "medusa_num_heads": 2, "medusa_num_layers": 1,
    "base_model_name_or_path": "some/model",
  }  # fmt: skip
  write(tmp_path / "medusa_lm_head.safetensors", published(5), config)
  opened = medusa.open(tmp_path)
  assert (
    opened.heads.n_extra == 5 and opened.origin["base_name"] == "some/model"
  )
  (note,) = opened.notes
  assert note.endswith("has 5 heads, its config.json says 2")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
  "n_layers, own", [(1, True), (1, False), (2, True), (2, False)]
)
def test_round_trip_is_exact(tmp_path, n_layers, own, dtype):
  tensors = published(n_layers=n_layers, own=own, dtype=jnp.dtype(dtype))
  write(tmp_path / "medusa_lm_head.safetensors", tensors)
  opened = medusa.open(tmp_path)
  params = opened.load(model_of(opened.heads))["heads"]
  conversions.write_medusa(tmp_path / "out", opened.heads, params, "a/b", dtype)
  again = safetensors.numpy.load_file(
    tmp_path / "out" / "medusa_lm_head.safetensors"
  )
  assert again.keys() == tensors.keys()
  for name, tensor in tensors.items():
    assert again[name].dtype == tensor.dtype
    assert again[name].tobytes() == tensor.tobytes()
  assert json.loads((tmp_path / "out" / "config.json").read_text()) == {
    "medusa_num_heads": 3,
    "medusa_num_layers": n_layers,
    "base_model_name_or_path": "a/b",
    "version": "1" if own else "2",
  }
  reopened = medusa.open(tmp_path / "out")
  assert reopened.heads == opened.heads and reopened.notes == ()
  assert reopened.origin["base_name"] == "a/b"


def test_same_values_on_a_mesh(tmp_path):
  write(tmp_path / "medusa_lm_head.safetensors", published())
  opened = medusa.open(tmp_path)
  one = opened.load(model_of(opened.heads))["heads"]
  mesh = parallel.make_mesh(tiny.config_lib.Mesh(fsdp=2, model=4))
  many = opened.load(model_of(opened.heads, mesh))["heads"]
  assert len(many["unembedding"].sharding.device_set) == 8
  tiny.assert_close(many, one, 0.0)


def refused(path, *words, **changes):
  with pytest.raises(UserError) as caught:
    opened = medusa.open(path)
    opened.load(model_of(opened.heads, **changes))
  message = str(caught.value)
  assert "\n" not in message
  for word in words:
    assert word in message, message


@pytest.mark.parametrize(
  "without, words",
  [
    (("1.0.linear.weight", "1.0.linear.bias", "1.1.weight"),
     ["head 2 is there, but not 1"]),
    (("2.0.linear.bias",), ["2.0.linear.bias is missing"]),
    (("0.1.weight",), ["0.1.weight is missing"]),
  ],
)  # fmt: skip
def test_gaps_are_refused_by_name(tmp_path, without, words):
  tensors = {n: t for n, t in published().items() if n not in without}
  write(tmp_path / "medusa_lm_head.safetensors", tensors)
  refused(tmp_path, "medusa_lm_head.safetensors", *words)


@pytest.mark.parametrize("prefix", ["", "medusa_head."])
@pytest.mark.parametrize("name", ["0.attention.weight", "lm_head.weight"])
def test_foreign_tensors_are_refused_by_name(tmp_path, prefix, name):
  tensors = published(prefix=prefix) | {prefix + name: np.ones(3)}
  write(tmp_path / "x.safetensors", tensors)
  refused(tmp_path / "x.safetensors", f"the tensor {prefix}{name} is none of")


def test_other_tensors_need_the_prefix_to_be_ignored(tmp_path):
  write(tmp_path / "x.safetensors", published() | {"norm": np.ones(3)})
  refused(tmp_path / "x.safetensors", "the tensor norm is none of")


def test_another_width_or_vocabulary_is_refused(tmp_path):
  write(tmp_path / "medusa_lm_head.pt", published())
  refused(
    tmp_path, "0.0.linear.weight is [16, 16], expected [32, 32]", d_model=32
  )
  refused(tmp_path, "0.1.weight is [24, 16], expected [32, 16]", vocab_size=32)


def test_no_heads_no_layers_no_file(tmp_path):
  refused(tmp_path, f"{tmp_path}: has neither medusa_lm_head.safetensors")
  refused(tmp_path / "x.pt", "no such file or folder")
  write(tmp_path / "x.safetensors", {"0.0.weight": np.ones((VOCAB, WIDTH))})
  refused(tmp_path / "x.safetensors", "no residual layer")
  write(tmp_path / "x.safetensors", {})
  refused(tmp_path / "x.safetensors", "holds no tensors")
  write(tmp_path / "model.safetensors", {"norm": np.ones(3)})
  refused(tmp_path, "has neither medusa_lm_head.safetensors")
  write(tmp_path / "medusa_lm_head.pt", published())
  for values, words in (
    ({"hidden_act": "gelu"}, "has hidden_act 'gelu'; only Medusa's own"),
    ({"version": "hydra"}, "has version 'hydra'"),
    ({"model_type": "eagle"}, "has model_type 'eagle'"),
    ({"hydra_head_bias": True}, "hydra_head_bias True is not supported"),
  ):
    (tmp_path / "config.json").write_text(json.dumps(values))
    refused(tmp_path, words)
  (tmp_path / "config.json").write_text("{")
  refused(tmp_path, "config.json: not valid JSON")


@pytest.mark.parametrize(
  "changes, words",
  [
    (dict(kind="linear"), "heads.kind: 'linear'"),
    (dict(tap="last"), "heads.tap: 'last'"),
    (dict(offsets=(1, 3)), "heads.offsets: (1, 3)"),
  ],
)
def test_heads_that_the_layout_cannot_hold(tmp_path, changes, words):
  heads = dataclasses.replace(
    tiny.config_lib.Heads(
      kind="medusa", tap="normed", offsets=(1, 2), matched=False
    ),
    **changes,
  )
  params = tiny.random_params(model_of(heads).abstract()["heads"], 0)
  with pytest.raises(UserError) as caught:
    conversions.write_medusa(tmp_path, heads, params, "", "float32")
  assert words in str(caught.value)


def test_heads_are_not_overwritten(tmp_path):
  write(tmp_path / "medusa_lm_head.safetensors", published())
  opened = medusa.open(tmp_path)
  params = opened.load(model_of(opened.heads))["heads"]
  with pytest.raises(UserError, match="is there already"):
    conversions.write_medusa(tmp_path, opened.heads, params, "", "float32")
