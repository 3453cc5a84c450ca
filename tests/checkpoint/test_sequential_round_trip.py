"""Sequential heads go out and come back: every bit, and every contradiction."""

import json

import conversions
import hf_checkpoints
import jax
import numpy as np
import pytest
import safetensors.numpy
import tiny

from mtpjax import config as config_lib
from mtpjax import parallel
from mtpjax.checkpoint.convert.formats import hf
from mtpjax.errors import UserError
from mtpjax.heads import MultiTokenModel


def model_of(n_heads, matched=False, n_layers=3, mesh=None, **changes):
  sizes = dict(
    vocab_size=48, d_model=24, n_layers=n_layers, n_attention_heads=4,
    n_kv_heads=2, d_head=8, d_ff=40, dtype="float32",
  )  # fmt: skip
  heads = config_lib.Heads(
    kind="sequential", offsets=tuple(range(1, n_heads + 2)), tap="last",
    matched=matched,
  )  # fmt: skip
  mesh = mesh or parallel.single_device_mesh()
  return MultiTokenModel(config_lib.Model(**(sizes | changes)), heads, mesh)


def written(folder, model, params=None, most=10**9):
  """Writes random parameters if none are given; returns them."""
  if params is None:
    params = tiny.random_params(model.abstract(), 1)
  folder.mkdir()
  hf.write(folder, conversions.target(model, params, most=most))
  return params


def read(folder, mesh=None):
  source = hf.open(folder)
  mesh = mesh or parallel.single_device_mesh()
  model = MultiTokenModel(source.model, source.heads, mesh)
  return model, source.load(model)


def random_case(rng):
  """Sizes and features of a model, at random."""
  qkv_bias = bool(rng.integers(2))
  return dict(
    n_heads=int(rng.integers(1, 4)),
    matched=bool(rng.integers(2)),
    n_layers=int(rng.integers(5, 7)),
    tied_embeddings=bool(rng.integers(2)),
    qkv_bias=qkv_bias,
    qk_norm=not qkv_bias and bool(rng.integers(2)),
    sliding_window=int(rng.choice([0, 5])),
    n_kv_heads=int(rng.choice([1, 2, 4])),
    d_head=int(rng.choice([4, 8])),
  )


def test_any_model_comes_back_bit_for_bit(tmp_path):
  rng = np.random.default_rng(0)
  seen = []
  for i in range(24):
    case = random_case(rng)
    seen.append((case["n_heads"], case["matched"], case["tied_embeddings"]))
    model = model_of(**case)
    folder = tmp_path / str(i)
    most = int(rng.choice([10**9, 20_000]))
    params = written(folder, model, most=most)
    back, got = read(folder)
    assert back.trunk_layers == model.trunk_layers, case
    assert back.heads.offsets == model.heads.offsets
    assert (back.heads.kind, back.heads.tap) == ("sequential", "last")
    assert jax.tree.structure(got) == jax.tree.structure(params), case
    jax.tree.map(np.testing.assert_array_equal, got, params)
    # What has come back goes out as the same bytes.
    written(tmp_path / f"{i}b", back, got, most)
    for file in folder.iterdir():
      again = tmp_path / f"{i}b" / file.name
      assert again.read_bytes() == file.read_bytes(), (case, file.name)
  # Heads, matched or not, tied or not: all of them were among the cases.
  assert {n for n, _, _ in seen} == {1, 2, 3}
  assert len({(m, t) for _, m, t in seen}) == 4


def test_they_come_back_onto_a_mesh(tmp_path):
  model = model_of(2)
  params = written(tmp_path / "out", model)
  mesh = parallel.make_mesh(config_lib.Mesh(fsdp=2, model=2))
  _, got = read(tmp_path / "out", mesh)
  jax.tree.map(np.testing.assert_array_equal, got, params)


def refused(folder, words, values=None, **tensors):
  """Reads a folder after changes to its config.json and tensors."""
  config = json.loads((folder / "config.json").read_text()) | (values or {})
  (folder / "config.json").write_text(json.dumps(config))
  there = hf_checkpoints.read_tensors(folder)
  for name, change in tensors.items():
    if change is None:
      del there[name]
    else:
      there[name] = change(there.get(name))
  safetensors.numpy.save_file(there, folder / "model.safetensors")
  with pytest.raises(UserError) as caught:
    read(folder)
  message = str(caught.value)
  assert words in message and "\n" not in message, message


@pytest.fixture
def folder(tmp_path):
  written(tmp_path / "out", model_of(2))
  return tmp_path / "out"


@pytest.mark.parametrize(
  "values, words",
  [
    ({"num_mtp_layers": 1}, "num_nextn_predict_layers 2 contradicts num_mtp"),
    ({"num_nextn_predict_layers": -1}, "num_nextn_predict_layers -1 must be"),
    ({"num_nextn_predict_layers": "2"}, "'2' is not a whole number"),
    ({"mtp_layer_types": ["sliding_attention"] * 2}, "layers are full_att"),
    ({"mtp_layer_types": ["full_attention"]}, "layers are full_attention"),
    (
      {"num_nextn_predict_layers": 3, "num_mtp_layers": None,
       "mtp_layer_types": None},
      "model.layers.5.enorm.weight is missing",
    ),
    (
      {"num_nextn_predict_layers": 10**9, "num_mtp_layers": None,
       "mtp_layer_types": None},
      "is more than the",
    ),
    (
      {"num_nextn_predict_layers": 0, "num_mtp_layers": None},
      "model.layers.3.eh_proj.weight belongs to no parameter",
    ),
  ],
)  # fmt: skip
def test_what_contradicts_the_weights_is_named(folder, values, words):
  refused(folder, words, values)


@pytest.mark.parametrize(
  "part, of",
  [
    ("embed_tokens.weight", "model.embed_tokens.weight"),
    ("shared_head.norm.weight", "model.norm.weight"),
    ("shared_head.head.weight", "lm_head.weight"),
  ],
)
def test_a_head_with_parts_of_its_own_is_refused(folder, part, of):
  name = f"model.layers.4.{part}"
  refused(folder, f"{name} is not {of}", **{name: lambda a: a + 1})


def test_copies_may_be_left_out(folder):
  there = hf_checkpoints.read_tensors(folder)
  _, params = read(folder)
  kept = {n: t for n, t in there.items() if "shared_head" not in n}
  assert len(kept) == len(there) - 4
  safetensors.numpy.save_file(kept, folder / "model.safetensors")
  jax.tree.map(np.testing.assert_array_equal, read(folder)[1], params)


def test_a_module_with_a_part_missing_or_more_is_refused(folder):
  name = "model.layers.4.hnorm.weight"
  refused(folder, f"{name} is missing", **{name: None})
  more = "model.layers.4.mlp.gate.weight"
  ones = np.ones(3, np.float32)
  refused(folder, f"{more} belongs to no parameter", **{more: lambda _: ones})
