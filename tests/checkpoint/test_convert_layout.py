"""Names, orders of axes and rotary pairs; what is read for which device."""

import jax
import numpy as np
import pytest

from mtpjax import config as config_lib
from mtpjax import heads, parallel
from mtpjax.checkpoint.convert.assemble import assemble
from mtpjax.checkpoint.convert.formats.hf_names import HF_NAMES
from mtpjax.checkpoint.convert.layout import (
  Leaf,
  block_leaves,
  lm_leaves,
  rows_from_pairs,
)
from mtpjax.errors import UserError


class InMemory:
  """Tensors by name, with a list of what was read."""

  source = "memory"

  def __init__(self, tensors):
    self.tensors = tensors
    self.reads = []

  def names(self):
    return list(self.tensors)

  def shape(self, name):
    return self.tensors[name].shape

  def read(self, name, rows=slice(None), columns=slice(None)):
    tensor = self.tensors[name]
    part = tensor[rows] if tensor.ndim == 1 else tensor[rows, columns]
    self.reads.append((name, part.size))
    return part


def model_config(**changes):
  sizes = dict(
    vocab_size=48, d_model=24, n_layers=2, n_attention_heads=4, n_kv_heads=2,
    d_head=8, d_ff=40, dtype="float32", qkv_bias=True, qk_norm=True,
  )  # fmt: skip
  return config_lib.Model(**(sizes | changes))


def make_model(mesh=None, **changes):
  mesh = parallel.single_device_mesh() if mesh is None else mesh
  return heads.MultiTokenModel(
    model_config(**changes), config_lib.Heads(offsets=(1,)), mesh
  )


def stored_by_hand(params, paired):
  """The tensors of a model, by a second way than `assemble`'s."""
  lm = jax.tree.map(np.asarray, params["lm"])
  tensors = {
    HF_NAMES["embedding"]: lm["embedding"],
    HF_NAMES["final_norm/scale"]: lm["final_norm"]["scale"],
    HF_NAMES["unembedding"]: lm["unembedding"].T,
  }

  def in_pairs(out_in, n):
    """Row r of a head goes to 2r in the first half, to 2(r - H/2) + 1 after."""
    if not paired:
      return out_in
    h = len(out_in) // n
    result = np.empty_like(out_in)
    for head in range(n):
      for row in range(h):
        new = 2 * row if row < h // 2 else 2 * (row - h // 2) + 1
        result[head * h + new] = out_in[head * h + row]
    return result

  for i in range(2):
    layer = jax.tree.map(lambda x, i=i: x[i], lm["layers"])
    a, m = layer["attention"], layer["mlp"]
    one = {
      "attention_norm/scale": layer["attention_norm"]["scale"],
      "mlp_norm/scale": layer["mlp_norm"]["scale"],
      "attention/query_norm/scale": in_pairs(a["query_norm"]["scale"], 1),
      "attention/key_norm/scale": in_pairs(a["key_norm"]["scale"], 1),
      "attention/out/kernel": a["out"]["kernel"].reshape(32, 24).T,
      "mlp/gate/kernel": m["gate"]["kernel"].T,
      "mlp/up/kernel": m["up"]["kernel"].T,
      "mlp/down/kernel": m["down"]["kernel"].T,
    }
    for name, n in (("query", 4), ("key", 2), ("value", 2)):
      matrix, bias = a[name]["kernel"].reshape(24, -1).T, a[name]["bias"]
      if name != "value":
        matrix, bias = in_pairs(matrix, n), in_pairs(bias.ravel(), n)
      one[f"attention/{name}/kernel"] = matrix
      one[f"attention/{name}/bias"] = bias.ravel()
    for path, tensor in one.items():
      tensors[HF_NAMES[f"layers/{path}"].replace("{i}", str(i))] = tensor
  return tensors


def random_params(model):
  rng = np.random.default_rng(0)
  return jax.tree.map(
    lambda leaf: rng.normal(size=leaf.shape).astype(leaf.dtype),
    parallel.unbox(model.abstract()),
  )


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 2)])
def test_every_parameter_is_found_in_its_order(paired, sizes):
  mesh = parallel.make_mesh(config_lib.Mesh(*sizes))
  model = make_model(mesh)
  params = random_params(model)
  tensors = InMemory(stored_by_hand(params, paired))
  leaves = lm_leaves(model.config, HF_NAMES, paired)
  lm = assemble(model.abstract()["lm"], leaves, tensors, mesh)
  jax.tree.map(np.testing.assert_array_equal, lm, params["lm"])


def test_pairs_by_hand_and_back():
  matrix = np.arange(12)[:, None] * np.ones((1, 3))
  halves = rows_from_pairs(matrix, 2)
  assert list(halves[:, 0]) == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]
  # The way back: halves of each head, one from either.
  back = halves.reshape(2, 2, 3, 3).swapaxes(1, 2).reshape(matrix.shape)
  np.testing.assert_array_equal(back, matrix)


def test_only_the_parameters_a_model_has_are_listed():
  plain = model_config(qkv_bias=False, qk_norm=False)
  paths = {leaf.path for leaf in lm_leaves(plain, HF_NAMES)}
  assert not any("bias" in p or "query_norm" in p for p in paths)
  assert "unembedding" in paths
  tied = lm_leaves(model_config(tied_embeddings=True), HF_NAMES)
  assert "unembedding" not in {leaf.path for leaf in tied}


def test_layers_of_heads_have_a_path_and_a_prefix_of_their_own():
  names = {
    path.removeprefix("layers/"): name.removeprefix("model.layers.{i}.")
    for path, name in HF_NAMES.items()
    if path.startswith("layers/")
  }
  leaves = block_leaves(model_config(), names, "layer", "extra.{i}.", True)
  assert Leaf(
    "layer/attention/query/kernel", "extra.{i}.self_attn.q_proj.weight", 1, 4
  ) in leaves  # fmt: skip
  model = heads.MultiTokenModel(
    model_config(),
    config_lib.Heads(offsets=(1, 2, 3), matched=False, tap="last"),
    parallel.single_device_mesh(),
  )
  flat, _ = jax.tree_util.tree_flatten_with_path(
    parallel.unbox(model.abstract()["heads"])
  )
  assert {leaf.path for leaf in leaves} == {
    jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in flat
  }


def test_each_part_is_read_once_and_alone():
  mesh = parallel.make_mesh(config_lib.Mesh(data=2, fsdp=2, model=2))
  model = make_model(mesh, qkv_bias=False, qk_norm=False)
  plain = make_model()
  stored = stored_by_hand(random_params(plain), False)
  needed = {
    name.replace("{i}", str(i))
    for leaf in lm_leaves(model.config, HF_NAMES)
    for i, name in enumerate(leaf.names((2,)))
  }
  tensors = InMemory({name: stored[name] for name in needed})
  leaves = lm_leaves(model.config, HF_NAMES)
  assemble(model.abstract()["lm"], leaves, tensors, mesh)
  totals: dict[str, list[int]] = {}
  for name, size in tensors.reads:
    totals.setdefault(name, []).append(size)
  for name, sizes in totals.items():
    whole = stored[name].size
    # Matrices are cut over fsdp and model; copies along data share a reading.
    expected = [whole // 4] * 4 if stored[name].ndim == 2 else [whole]
    assert sizes == expected, name
  assert totals.keys() == needed


def test_nothing_is_read_before_all_names_and_shapes_are_right():
  model = make_model()
  stored = stored_by_hand(random_params(model), False)
  del stored["model.norm.weight"]
  tensors = InMemory(stored)
  leaves = lm_leaves(model.config, HF_NAMES)
  boxes = model.abstract()["lm"]
  with pytest.raises(UserError, match="memory: .*model.norm.weight is missing"):
    assemble(boxes, leaves, tensors, model.mesh)
  assert tensors.reads == []


def test_what_is_ignored_need_not_be_used():
  model = make_model()
  tensors = InMemory(stored_by_hand(random_params(model), False))
  tensors.tensors["extra"] = np.ones(3)
  leaves = lm_leaves(model.config, HF_NAMES)
  boxes = model.abstract()["lm"]
  with pytest.raises(UserError, match="extra belongs to no parameter"):
    assemble(boxes, leaves, tensors, model.mesh)
  assemble(boxes, leaves, tensors, model.mesh, lambda name: name == "extra")
