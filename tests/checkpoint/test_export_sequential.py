"""Sequential heads as DeepSeek-V3 publishes them: names, order, every bit."""

import json

import conversions
import hf_checkpoints
import jax
import numpy as np
import pytest
import rich.console
import tiny

from mtpjax import config as config_lib
from mtpjax import parallel
from mtpjax.checkpoint import Store, WorkDir
from mtpjax.checkpoint.convert.formats import hf
from mtpjax.heads import MultiTokenModel
from mtpjax.jobs import export

# By hand from the published model: its 61 layers are 0 to 60, the module's
# tensors begin with model.layers.61.
MODULE = """
embed_tokens.weight enorm.weight hnorm.weight eh_proj.weight
shared_head.norm.weight shared_head.head.weight input_layernorm.weight
post_attention_layernorm.weight self_attn.q_proj.weight self_attn.k_proj.weight
self_attn.v_proj.weight self_attn.o_proj.weight mlp.gate_proj.weight
mlp.up_proj.weight mlp.down_proj.weight
""".split()
N_LAYERS, N_EXTRA, D = 3, 2, 24


def a_model(**changes):
  sizes = dict(
    vocab_size=48, d_model=D, n_layers=N_LAYERS, n_attention_heads=4,
    n_kv_heads=2, d_head=8, d_ff=40, dtype="float32",
  )  # fmt: skip
  config = config_lib.Model(**(sizes | changes))
  heads = config_lib.Heads(
    kind="sequential", offsets=(1, 2, 3), tap="last", matched=False
  )
  return MultiTokenModel(config, heads, parallel.single_device_mesh())


def written(folder, model, params, dtype="float32", most=10**9):
  folder.mkdir()
  n = hf.write(folder, conversions.target(model, params, dtype, most)).params
  tensors = hf_checkpoints.read_tensors(folder)
  assert n == sum(tensor.size for tensor in tensors.values())
  return tensors


def of_module(k, tensors):
  stem = f"model.layers.{N_LAYERS + k - 1}."
  return {
    name.removeprefix(stem): tensor
    for name, tensor in tensors.items()
    if name.startswith(stem)
  }


def test_names_are_those_published(tmp_path):
  model = a_model()
  params = tiny.random_params(model.abstract(), 1)
  tensors = written(tmp_path / "out", model, params)
  trunk = hf_checkpoints.random_tensors(
    hf_checkpoints.config_values("llama", num_hidden_layers=N_LAYERS)
  )
  golden = set(trunk) | {
    f"model.layers.{n}.{name}" for n in (3, 4) for name in MODULE
  }
  assert set(tensors) == golden


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_bit_of_a_module(tmp_path, dtype, tied):
  model = a_model(tied_embeddings=tied)
  params = tiny.random_params(model.abstract(), 2)
  tensors = written(tmp_path / "out", model, params, dtype)
  lm, heads = params["lm"], params["heads"]
  table_VD = lm["embedding"] if tied else lm["unembedding"].T
  for k in (1, 2):
    own = jax.tree.map(lambda leaf, k=k: leaf[k - 1], heads)
    matrix_ED, layer = own["projection"]["kernel"], own["layer"]
    expected = {
      "embed_tokens.weight": lm["embedding"],
      "enorm.weight": own["embedding_norm"]["scale"],
      "hnorm.weight": own["hidden_norm"]["scale"],
      # Columns: the embedding's first, then those of the state before.
      "eh_proj.weight": np.concatenate(
        [matrix_ED[:D].T, matrix_ED[D:].T], axis=1
      ),
      "shared_head.norm.weight": lm["final_norm"]["scale"],
      "shared_head.head.weight": table_VD,
      "input_layernorm.weight": layer["attention_norm"]["scale"],
      "post_attention_layernorm.weight": layer["mlp_norm"]["scale"],
      "self_attn.o_proj.weight":
        layer["attention"]["out"]["kernel"].reshape(-1, D).T,
    }  # fmt: skip
    for part in ("query", "key", "value"):
      kernel = layer["attention"][part]["kernel"]
      expected[f"self_attn.{part[0]}_proj.weight"] = kernel.reshape(D, -1).T
    for part in ("gate", "up", "down"):
      expected[f"mlp.{part}_proj.weight"] = layer["mlp"][part]["kernel"].T
    module = of_module(k, tensors)
    assert module.keys() == expected.keys() == set(MODULE)
    for name, array in expected.items():
      np.testing.assert_array_equal(module[name], array.astype(dtype))
  assert tensors["model.layers.3.eh_proj.weight"].shape == (D, 2 * D)


def test_shards_hold_the_same(tmp_path):
  model = a_model(qk_norm=True)
  params = tiny.random_params(model.abstract(), 3)
  whole = written(tmp_path / "whole", model, params)
  cut = written(tmp_path / "cut", model, params, most=8000)
  jax.tree.map(np.testing.assert_array_equal, cut, whole)
  assert "self_attn.q_norm.weight" in of_module(2, whole)
  index = json.loads(
    (tmp_path / "cut" / "model.safetensors.index.json").read_text()
  )
  assert set(index["weight_map"]) == set(whole)


def test_export_of_a_work_directory(tmp_path):
  model = a_model(vocab_size=258)  # of the byte tokenizer
  config = config_lib.Config(
    model=model.config, heads=model.heads,
    data=config_lib.Data(tokenizer="bytes", row_length=16),
  )  # fmt: skip
  params = tiny.random_params(model.abstract(), 4)
  place = WorkDir(tmp_path / "run")
  place.path.mkdir()
  config.save(place.config)
  place.origin.write_text('{"max_length": 16}')  # no rows were trained on
  metadata = {
    "config": config.to_dict(), "data": "", "tokenizer": "", "step": 0
  }  # fmt: skip
  with Store(place.checkpoints) as store:
    placed = jax.device_put(
      params, parallel.shardings(model.abstract(), model.mesh)
    )
    store.save(0, {"params": placed}, metadata, wait=True)
  console = rich.console.Console(file=(tmp_path / "printed").open("w"))
  export.run("hf", tmp_path / "run", tmp_path / "out", console)
  export.run(
    "hf", tmp_path / "run", tmp_path / "plain", console, next_only=True
  )
  values = json.loads((tmp_path / "out" / "config.json").read_text())
  assert values["num_hidden_layers"] == N_LAYERS
  assert values["num_nextn_predict_layers"] == N_EXTRA
  tensors = hf_checkpoints.read_tensors(tmp_path / "out")
  np.testing.assert_array_equal(
    of_module(2, tensors)["eh_proj.weight"],
    params["heads"]["projection"]["kernel"][1].T,
  )
  assert not (tmp_path / "out" / "medusa").exists()
  # Without heads, nothing speaks of them.
  plain = json.loads((tmp_path / "plain" / "config.json").read_text())
  assert "num_nextn_predict_layers" not in plain
  tensors = hf_checkpoints.read_tensors(tmp_path / "plain")
  assert not of_module(1, tensors)
  console.file.flush()
  line, plain_line = (tmp_path / "printed").read_text().splitlines()
  assert "sequential heads as the last layers" in line
  assert "sequential" not in plain_line
