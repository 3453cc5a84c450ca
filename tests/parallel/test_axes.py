"""Logical names become shardings, and values do not depend on the mesh."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from jax.sharding import PartitionSpec as P

from mtpjax import config as config_lib
from mtpjax import parallel

MESH_222 = config_lib.Mesh(data=2, fsdp=2, model=2)
KINDS = ("block", "linear", "medusa")


def model_of(kind, mesh_config=None, **changes):
  if mesh_config is None:
    mesh_config = config_lib.Mesh()
  return tiny.multi_token_model(
    parallel.make_mesh(mesh_config),
    config_lib.Heads(kind=kind, matched=False),
    **changes,
  )


@pytest.mark.parametrize(
  "names, shape, expected",
  [
    (("embed", "vocab"), (8, 6), P("fsdp", "model")),
    (("embed", "vocab"), (8, 7), P("fsdp", None)),  # 7 over 2: kept whole
    (("embed", "vocab"), (7, 7), P(None, None)),
    (("layers", "embed", "attention_heads", "d_head"), (3, 4, 6, 2),
     P(None, "fsdp", "model", None)),
    (("batch", "time", "width"), (8, 4, 2), P(("data", "fsdp"), None, None)),
    (("batch", None), (6, 4), P(None, None)),  # 6 over data x fsdp = 4
    ((None, "batch"), (3, 4), P(None, ("data", "fsdp"))),
  ],
)  # fmt: skip
def test_partition_cuts_what_divides(names, shape, expected):
  mesh = parallel.make_mesh(MESH_222)
  assert parallel.partition(names, shape, mesh) == expected


def test_partition_refuses_a_mesh_axis_used_twice():
  # On a mesh where nothing is cut, too: it would fail on the next one.
  for config in (MESH_222, config_lib.Mesh()):
    mesh = parallel.make_mesh(config)
    for names in (
      ("mlp", "attention_heads"),
      ("vocab", "mlp"),
      ("batch", "embed"),
    ):
      with pytest.raises(ValueError, match="used twice"):
        parallel.partition(names, (8, 8), mesh)


def test_partition_refuses_unknown_names():
  mesh = parallel.make_mesh(MESH_222)
  with pytest.raises(ValueError, match="unknown logical axis 'vocabulary'"):
    parallel.partition(("embed", "vocabulary"), (8, 8), mesh)


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_has_a_box_that_fits(kind):
  abstract = model_of(kind).abstract()
  leaves = jax.tree.leaves(abstract, is_leaf=parallel.is_box)
  assert all(parallel.is_box(leaf) for leaf in leaves)
  for leaf in leaves:
    assert len(leaf.names) == len(leaf.value.shape)
  bare = jax.tree.leaves(parallel.unbox(abstract))
  assert [leaf.value.shape for leaf in leaves] == [x.shape for x in bare]
  first = {leaf.names[0] for leaf in jax.tree.leaves(
    abstract["heads"], is_leaf=parallel.is_box)}  # fmt: skip
  assert first == {"offsets"}


def test_init_gives_the_same_values_on_one_and_on_eight_devices():
  key = jax.random.key(3)
  one = model_of("linear").init(key)
  many_model = model_of("linear", MESH_222)
  many = many_model.init(key)
  # The same draws; jax 0.12 rounds some of them another way when it cuts them.
  jax.tree.map(
    functools.partial(np.testing.assert_allclose, rtol=3e-7), one, many
  )
  expected = parallel.shardings(many_model.abstract(), many_model.mesh)
  jax.tree.map(
    lambda x, s: np.testing.assert_(x.sharding.is_equivalent_to(s, x.ndim)),
    many,
    expected,
  )
  # Layers and heads have their own keys.
  for kernel in (
    many["lm"]["layers"]["mlp"]["gate"]["kernel"],
    many["heads"]["map"]["kernel"],
  ):
    kernel = np.asarray(kernel)
    assert not np.array_equal(kernel[0], kernel[1])


def test_a_full_size_model_is_cut_without_being_allocated():
  model = model_of(
    "block",
    MESH_222,
    vocab_size=32_000,
    d_model=4096,
    n_layers=32,
    n_attention_heads=32,
    n_kv_heads=8,
    d_head=128,
    d_ff=11_008,
    dtype="bfloat16",
  )
  abstract = model.abstract()
  leaves = jax.tree.leaves(parallel.unbox(abstract))
  assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)
  # Counted by hand: q and o, k and v, three MLP matrices, two norms.
  layer = 2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 11_008 + 2 * 4096
  total = sum(math.prod(leaf.shape) for leaf in leaves)
  assert total == (32 + 3) * layer + 2 * 32_000 * 4096 + 4096
  shardings = jax.tree.leaves(parallel.shardings(abstract, model.mesh))
  for leaf, sharding in zip(leaves, shardings, strict=True):
    local = math.prod(sharding.shard_shape(leaf.shape))
    if math.prod(leaf.shape) > 1_000_000:
      assert local * 4 == math.prod(leaf.shape)  # fsdp x model
    else:
      assert local == math.prod(leaf.shape)


def test_stack_splits_the_key_and_names_the_axis():
  init = parallel.logical(jax.nn.initializers.normal(1.0), "embed")
  box = parallel.stack(
    lambda key: init(key, (4,), jnp.float32), jax.random.key(1), 3, "layers"
  )
  assert box.names == ("layers", "embed")
  for row, key in zip(
    box.value, jax.random.split(jax.random.key(1), 3), strict=True
  ):
    np.testing.assert_array_equal(row, jax.random.normal(key, (4,)))
