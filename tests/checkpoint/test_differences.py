from typing import NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import optax

from mtpjax.checkpoint import differences


def shape(*dims, dtype=jnp.float32):
  return jax.ShapeDtypeStruct(dims, dtype)


def test_table_names_each_kind_of_difference():
  stored = {"lm": {"a": shape(2, 3), "b": shape(4), "c": shape()}, "x": shape()}
  asked = {
    "lm": {"a": shape(2, 5), "b": shape(4, dtype=jnp.bfloat16), "c": shape()},
    "heads": [shape(7)],
  }
  assert differences.table(stored, asked, partial=False).split("\n") == [
    "           name     in the checkpoint  asked for",
    "  missing  heads/0  -                  float32[7]",
    "  shape    lm/a     float32[2,3]       float32[2,5]",
    "  dtype    lm/b     float32[4]         bfloat16[4]",
    "  extra    x        float32[]          -",
  ]


def test_partial_allows_extra_but_not_missing():
  stored = {"lm": shape(2), "heads": shape(3)}
  assert differences.table(stored, {"lm": shape(2)}, partial=True) == ""
  table = differences.table(stored, {"lmm": shape(2)}, partial=True)
  assert "missing" in table and "extra" not in table


class Pair(NamedTuple):
  left: jax.Array
  right: jax.Array


@flax.struct.dataclass
class Box:
  pair: Pair


def test_containers_with_the_same_names_are_the_same():
  # In a checkpoint NamedTuples and dataclasses have become dicts.
  asked = Box(Pair(shape(1), shape(2)))
  stored = {"pair": {"left": shape(1), "right": shape(2)}}
  assert differences.table(stored, asked, partial=False) == ""


def test_nodes_without_leaves_are_compared():
  stored = {"opt": [shape(1), None]}
  same = {"opt": (shape(1), optax.EmptyState())}
  longer = {"opt": (shape(1), optax.EmptyState(), optax.EmptyState())}
  assert differences.table(stored, same, partial=False) == ""
  assert "opt/2" in differences.table(stored, longer, partial=False)


def test_typed_keys_are_compared_by_their_bits():
  key = jax.eval_shape(lambda: jax.random.key(0))
  bits = shape(2, dtype=jnp.uint32)
  assert differences.table({"key": bits}, {"key": key}, partial=False) == ""
  assert "shape" in differences.table(
    {"key": bits}, {"key": jax.ShapeDtypeStruct((3,), key.dtype)}, partial=False
  )


def test_long_tables_are_cut():
  stored = {f"{i:03}": shape(i + 1) for i in range(100)}
  table = differences.table(stored, {"000": shape(1)}, partial=False)
  assert table.count("extra") == 30 and table.endswith("... and 69 more")
