"""The trunk: who reads whom, and that storage and remat change no value."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from mtpjax.config import TAPS
from mtpjax.model import Block, Placement, Trunk, masks, unstack_layers
from mtpjax.model.attention import KeyValues
from mtpjax.parallel import single_device_mesh

SEGMENTS_BT = np.array(
  [[1, 1, 1, 1, 2, 2, 2, 0, 0], [1, 2, 3, 3, 3, 3, 3, 3, 3]]
)
TOKENS_BT = np.arange(18).reshape(2, 9)  # all different
POSITIONS_BT = tiny.positions(SEGMENTS_BT)
PLACEMENT = Placement.packed(POSITIONS_BT, SEGMENTS_BT)


def trunk_of(tap="before_last", n_layers=3, **changes):
  config = tiny.model_config(n_layers=n_layers, vocab_size=50, **changes)
  return Trunk(config, n_layers, TAPS[tap], single_device_mesh())


@functools.cache
def params_of(n_layers=3):
  abstract = jax.eval_shape(
    lambda key: trunk_of(n_layers=n_layers).init(key, TOKENS_BT, PLACEMENT)[
      "params"
    ],
    jax.random.key(0),
  )
  return tiny.random_params(abstract, seed=3)


def run(trunk, params):
  return trunk.apply(
    {"params": params},
    TOKENS_BT,
    Placement.packed(POSITIONS_BT, jnp.asarray(SEGMENTS_BT)),
  )


def test_a_position_reads_its_document_up_to_itself():
  trunk, params = trunk_of(), params_of()
  direction_D = np.random.default_rng(0).normal(size=32)

  @jax.jit
  def jacobian(embedding_VD):
    def hidden(embedding_VD):
      out = run(trunk, params | {"embedding": embedding_VD})
      return jnp.stack(
        [out.hidden_BTD @ direction_D, out.tap_BTD @ direction_D]
      )

    return jax.jacrev(hidden)(embedding_VD)

  # Every token occurs once, so its embedding stands for its position.
  jacobian_XBTVD = jacobian(params["embedding"])
  reads_XBTV = np.any(np.asarray(jacobian_XBTVD) != 0, axis=-1)
  for reads_BTV in reads_XBTV:
    for b, reads_TV in enumerate(reads_BTV):
      for t, reads_V in enumerate(reads_TV):
        expected = [
          TOKENS_BT[b, s]
          for s in range(t + 1)
          if SEGMENTS_BT[b, s] == SEGMENTS_BT[b, t]
        ]
        assert np.nonzero(reads_V)[0].tolist() == expected


def test_rematerialisation_changes_no_value():
  params = params_of()
  weights_BTD = np.random.default_rng(1).normal(size=(2, 9, 32))
  results, products = {}, {}
  for remat in ("none", "full", "dots"):
    trunk = trunk_of(remat=remat)

    def loss(params, trunk=trunk):
      out = run(trunk, params)
      return jnp.sum(weights_BTD * (out.hidden_BTD + out.tap_BTD))

    lowered = jax.jit(jax.value_and_grad(loss)).lower(params)
    products[remat] = lowered.as_text().count("stablehlo.dot_general")
    results[remat] = lowered.compile()(params)
  # The policies do differ: by what is computed again.
  assert products["none"] <= products["dots"] < products["full"]
  for remat in ("full", "dots"):
    tiny.assert_close(results[remat], results["none"], 1e-6)


@pytest.mark.parametrize("tap", ["before_last", "last"])
def test_layers_in_a_loop_are_layers_in_a_scan(tap):
  trunk, params = trunk_of(tap), params_of()
  layers = unstack_layers(params["layers"])
  assert len(layers) == 3

  @jax.jit
  def both(params):
    scanned = run(trunk, params)
    return scanned, run(trunk, params | {"layers": layers})

  scanned, looped = both(params)
  assert scanned.rows == () and len(looped.rows) == 3
  tiny.assert_close(looped.hidden_BTD, scanned.hidden_BTD, 1e-6)
  tiny.assert_close(looped.tap_BTD, scanned.tap_BTD, 1e-6)
  # The tap is where it says: one more layer, or none, to the end.
  rest = layers[2:] if tap == "before_last" else ()
  x_BTD = scanned.tap_BTD
  for layer in rest:
    x_BTD, _ = Block(trunk.config).apply(
      {"params": layer},
      x_BTD,
      Placement.packed(POSITIONS_BT, jnp.asarray(SEGMENTS_BT)),
    )
  tiny.assert_close(x_BTD, scanned.hidden_BTD, 1e-6)


def test_tied_embeddings_are_the_transposed_table():
  trunk = trunk_of(tied_embeddings=True)
  abstract = jax.eval_shape(
    lambda key: trunk.init(key, TOKENS_BT, PLACEMENT)["params"],
    jax.random.key(0),
  )
  assert set(abstract) == set(params_of()) - {"unembedding"}
  params = params_of()
  tied = {k: v for k, v in params.items() if k != "unembedding"}
  hidden_BTD = jax.random.normal(jax.random.key(1), (2, 9, 32))
  untied = params | {"unembedding": params["embedding"].T}
  np.testing.assert_array_equal(
    trunk.logits(tied, hidden_BTD), trunk_of().logits(untied, hidden_BTD)
  )


# One root with two children; the first has two of its own, the other one:
#       0
#     1   2
#    3 4  5
PARENTS = [-1, 0, 0, 1, 1, 2]
PATHS = [[0, 1, 3], [0, 1, 4], [0, 2, 5]]
LENGTHS = [3, 5]  # prompt tokens per row; the cache has room for 6
CAPACITY = 6


def ancestors():
  result = np.eye(6, dtype=bool)
  for node, parent in enumerate(PARENTS):
    if parent >= 0:
      result[node] |= result[parent]
  return result


@functools.cache
def tree_case():
  """Prompts, tree tokens, and every path run without a cache."""
  rng = np.random.default_rng(8)
  trunk = trunk_of(n_layers=2)
  params = params_of(2)
  params = params | {"layers": unstack_layers(params["layers"])}
  prompts = [rng.integers(0, 50, n).tolist() for n in LENGTHS]
  tree_BQ = rng.integers(0, 50, (2, 6))
  rows = [
    [prompt + tree_Q[path].tolist()]
    for prompt, tree_Q in zip(prompts, tree_BQ, strict=True)
    for path in PATHS
  ]
  batch = tiny.pack(rows, max(LENGTHS) + 3)
  out = jax.jit(
    lambda batch: trunk.apply(
      {"params": params},
      batch["tokens"],
      Placement.packed(batch["positions"], batch["segments"]),
    )
  )(batch)

  def cached(garbage):
    """The prompts' keys and values; beyond them, garbage."""

    def fill(rows_BKSH):
      cache = np.full((2, *rows_BKSH.shape[1:2], CAPACITY, 4), garbage,
                      np.float32)  # fmt: skip
      for b, n in enumerate(LENGTHS):
        cache[b, :, :n] = rows_BKSH[b * len(PATHS), :, :n]
      return cache

    return jax.tree.map(fill, out.rows)

  depth_Q = ancestors().sum(axis=1) - 1

  @jax.jit
  def run_tree(tree_BQ, cache):
    return trunk.apply(
      {"params": params},
      tree_BQ,
      Placement(
        np.array(LENGTHS)[:, None] + depth_Q,
        masks.Tree(jnp.asarray(ancestors()), jnp.array(LENGTHS)),
      ),
      cache=cache,
    )

  return tree_BQ, out, cached, run_tree


def at_nodes(out, b):
  """Everything a pass returns of row b, nodes first."""
  return dict(
    hidden=out.hidden_BTD[b],
    tap=out.tap_BTD[b],
    rows=[
      jax.tree.map(lambda x: x[b].swapaxes(0, 1), rows) for rows in out.rows
    ],
  )


def test_a_tree_pass_is_every_path_run_without_a_cache():
  tree_BQ, plain, cached, run_tree = tree_case()
  out = run_tree(tree_BQ, cached(1e3))
  assert isinstance(out.rows[0], KeyValues)
  for b, n in enumerate(LENGTHS):
    nodes = at_nodes(out, b)
    for p, path in enumerate(PATHS):
      expected = at_nodes(plain, b * len(PATHS) + p)
      tiny.assert_close(
        jax.tree.map(lambda x, path=path: x[np.array(path)], nodes),
        jax.tree.map(lambda x, n=n: x[n : n + 3], expected),
        1e-5,
      )


def test_a_node_changes_only_its_descendants_bit_for_bit():
  tree_BQ, _, cached, run_tree = tree_case()
  before = run_tree(tree_BQ, cached(1e3))
  for node in range(6):
    changed_BQ = tree_BQ.copy()
    changed_BQ[:, node] = (changed_BQ[:, node] + 1) % 50
    after = run_tree(changed_BQ, cached(1e3))
    for b in range(2):
      differs = np.any(
        np.asarray(
          at_nodes(before, b)["hidden"] != at_nodes(after, b)["hidden"]
        ),
        axis=-1,
      )
      np.testing.assert_array_equal(differs, ancestors()[:, node])


def test_what_lies_beyond_the_filled_cache_is_never_read():
  tree_BQ, _, cached, run_tree = tree_case()
  jax.tree.map(
    np.testing.assert_array_equal,
    run_tree(tree_BQ, cached(1e3)),
    run_tree(tree_BQ, cached(-7.0)),
  )


def test_logits_of_bfloat16_activations_are_float32():
  trunk = trunk_of(dtype="bfloat16")
  params = params_of()
  logits = jax.eval_shape(
    trunk.logits, params, jax.ShapeDtypeStruct((2, 9, 32), jnp.bfloat16)
  )
  assert logits.shape == (2, 9, 50) and logits.dtype == jnp.float32


@pytest.mark.parametrize("is_stacked", [True, False])
def test_a_second_pass_stands_on_the_first(is_stacked):
  """States from anywhere, on keys and values that a pass has handed out."""
  trunk, params = trunk_of(), params_of()
  tokens_BT, n = jnp.asarray(TOKENS_BT), TOKENS_BT.shape[1]
  positions_BT = jnp.broadcast_to(jnp.arange(n), tokens_BT.shape)
  if not is_stacked:
    params = params | {"layers": unstack_layers(params["layers"])}
  whole = trunk.run(
    params,
    trunk.embed(params, tokens_BT),
    Placement.whole(tokens_BT),
  )
  first = trunk.run(
    params,
    trunk.embed(params, tokens_BT[:, :4]),
    Placement.whole(tokens_BT[:, :4]),
    keeps_rows=True,
  )
  causal = jnp.tril(jnp.ones((n - 4, n - 4), bool))
  mask = masks.Tree(causal, jnp.full(len(tokens_BT), 4))
  second = trunk.run(
    params,
    trunk.embed(params, tokens_BT[:, 4:]),
    Placement(positions_BT[:, 4:], mask),
    cache=first.rows,
  )
  for got, want in (
    (first.hidden_BTD, whole.hidden_BTD[:, :4]),
    (second.hidden_BTD, whole.hidden_BTD[:, 4:]),
    (second.tap_BTD, whole.tap_BTD[:, 4:]),
  ):
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)
  assert bool(jax.tree.leaves(first.rows))
  assert bool(jax.tree.leaves(whole.rows)) != is_stacked  # nobody asked
