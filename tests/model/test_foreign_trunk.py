"""Somebody else's module as a trunk: trained, sharded, saved, decoded."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from mtpjax import config as config_lib
from mtpjax import decode, heads, parallel
from mtpjax.checkpoint import Store
from mtpjax.errors import UserError
from mtpjax.model import KeyValues, TrunkOutput, foreign
from mtpjax.train import (
  abstract_state,
  create_state,
  make_optimizer,
  make_train_step,
)
from mtpjax.train.optimizer import decay_mask

V, D, T, LAYERS = 24, 16, 16, 2
POSITIONS = 64
HEADS = config_lib.Heads(
  offsets=(1, 2, 3), kind="medusa", tap="last", matched=False
)
CONFIG = config_lib.Model(
  vocab_size=V, d_model=D, n_layers=LAYERS, n_attention_heads=2, n_kv_heads=2,
  d_head=8, d_ff=16, dtype="float32",
)  # fmt: skip


# A Linen module that taps before its last layer.


class Layer(nn.Module):
  @nn.compact
  def __call__(self, x, mask):
    y = nn.LayerNorm()(x)
    x = x + nn.MultiHeadDotProductAttention(2)(y, mask=mask)
    return x + nn.Dense(D)(nn.gelu(nn.Dense(2 * D)(nn.LayerNorm()(x))))


class Decoder(nn.Module):
  def setup(self):
    self.embed = nn.Embed(V, D)
    self.place = nn.Embed(POSITIONS, D)
    self.layers = [self.make_layer() for _ in range(LAYERS)]
    self.norm = nn.LayerNorm()
    self.head = nn.Dense(V, use_bias=False)

  def make_layer(self):
    return Layer()

  def hidden(self, tokens, positions, mask, cache=None):
    x = tap = self.embed(tokens) + self.place(positions)
    for layer in self.layers:
      tap = x
      x = layer(x, mask)
    return TrunkOutput(tap, x, ())

  def __call__(self, tokens, positions, mask, cache=None):
    out = self.hidden(tokens, positions, mask)
    return self.head(self.norm(out.hidden_BTD))


@functools.cache
def linen():
  return foreign.linen_module(
    Decoder(), nn.LayerNorm(), "norm", unembedding="head/kernel",
    method="hidden",
  )  # fmt: skip


# An NNX module with tied embeddings and a list of layers.


class NnxLayer(nnx.Module):
  def __init__(self, rngs):
    self.norm = nnx.LayerNorm(D, rngs=rngs)
    self.attention = nnx.MultiHeadAttention(
      2, D, decode=False, dropout_rate=0.5, rngs=rngs
    )
    self.mlp = nnx.Linear(D, D, rngs=rngs)

  def __call__(self, x, mask):
    x = x + self.attention(self.norm(x), mask=mask)
    return x + nnx.gelu(self.mlp(x))


class NnxDecoder(nnx.Module):
  def __init__(self, rngs):
    self.embed = nnx.Embed(V, D, rngs=rngs)
    self.place = nnx.Embed(POSITIONS, D, rngs=rngs)
    self.layers = nnx.List([NnxLayer(rngs) for _ in range(LAYERS)])
    self.norm = nnx.LayerNorm(D, rngs=rngs)

  def __call__(self, tokens, positions, mask, cache):
    x = self.embed(tokens) + self.place(positions)
    for layer in self.layers:
      x = layer(x, mask)
    return x


@functools.cache
def nnx_module():
  return foreign.nnx_module(NnxDecoder, "norm", embedding="embed/embedding")


# A Linen module that can decode: it takes and returns keys and values.


class CachedLayer(nn.Module):
  @nn.compact
  def __call__(self, x, mask, cache):
    y = nn.LayerNorm()(x)
    q, k, v = (
      nn.DenseGeneral((2, 8), name=name)(y) for name in ("q", "k", "v")
    )
    rows = KeyValues(k.swapaxes(1, 2), v.swapaxes(1, 2))
    keys, values = rows.keys_BKSH, rows.values_BKSH
    if cache is not None:
      keys = jnp.concatenate([cache.keys_BKSH, keys], axis=2)
      values = jnp.concatenate([cache.values_BKSH, values], axis=2)
    scores = jnp.einsum("btnh,bnsh->bnts", q, keys) / 8**0.5
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9))
    mixed = jnp.einsum("bnts,bnsh->btnh", weights, values)
    x = x + nn.DenseGeneral(D, axis=(-2, -1))(mixed)
    return x + nn.Dense(D)(nn.gelu(nn.Dense(2 * D)(nn.LayerNorm()(x)))), rows


class CachedDecoder(Decoder):
  def make_layer(self):
    return CachedLayer()

  def hidden(self, tokens, positions, mask, cache=None):
    x = tap = self.embed(tokens) + self.place(positions)
    rows = []
    for i, layer in enumerate(self.layers):
      tap = x
      x, new = layer(x, mask, None if cache is None else cache[i])
      rows.append(new)
    return TrunkOutput(tap, x, tuple(rows))


@functools.cache
def cached():
  return foreign.linen_module(
    CachedDecoder(), nn.LayerNorm(), "norm", unembedding="head/kernel",
    method="hidden",
  )  # fmt: skip


MODULES = {"linen": linen, "nnx": nnx_module}
TAPS = {"linen": "before_last", "nnx": "last"}


def model_of(module, heads_config=HEADS, mesh=None, **changes):
  mesh = parallel.single_device_mesh() if mesh is None else mesh
  config = dataclasses.replace(CONFIG, **changes)
  return heads.MultiTokenModel(config, heads_config, mesh, module)


@functools.cache
def example(name):
  """(model, parameters as NumPy arrays) of one of the modules."""
  tapped = dataclasses.replace(HEADS, tap=TAPS[name])
  model = model_of(MODULES[name](), tapped)
  return model, tiny.random_params(model.abstract(), seed=2)


def batch():
  rng = np.random.default_rng(4)
  rows = [
    [rng.integers(1, V, n).tolist() for n in lengths]
    for lengths in [
      [16],
      [5, 11],
      [3, 4],
      [1, 15],
      [4, 8, 4],
      [2],
      [10, 6],
      [9],
    ]
  ]
  return tiny.pack(rows, T, V)


def allowed(segments_BT):
  same = segments_BT[:, :, None] == segments_BT[:, None, :]
  return (same & np.tril(np.ones((T, T), bool)))[:, None]


def layer_norm(params, x):
  x = x - x.mean(-1, keepdims=True)
  x = x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
  return x * params["scale"] + params["bias"]


def own_hidden(name, params, rows):
  """(tap, last hidden states, unembedding) of the module, used as is."""
  inputs = rows["tokens"], rows["positions"], allowed(rows["segments"])
  if name == "linen":
    out = Decoder().apply({"params": params}, *inputs, method="hidden")
    return out.tap_BTD, out.hidden_BTD, params["head"]["kernel"]
  module = nnx.eval_shape(lambda: NnxDecoder(nnx.Rngs(0)))
  graph, state, others = nnx.split(module, nnx.Param, ...)
  layers = {int(i): layer for i, layer in params["layers"].items()}
  nnx.replace_by_pure_dict(state, params | {"layers": layers})
  others = nnx.split(NnxDecoder(nnx.Rngs(0)), nnx.Param, ...)[2]
  module = nnx.merge(graph, state, others)
  module.eval()
  hidden = module(*inputs, None)
  return hidden, hidden, params["embed"]["embedding"].T


def own_loss(name, params, head_params, rows):
  """The sum over offsets of mean losses, all logits at once."""
  tap, hidden, unembedding = own_hidden(name, params, rows)
  states = [hidden]
  for m in range(2):
    one = jax.tree.map(lambda leaf, m=m: leaf[m], head_params)
    states.append(tap + jax.nn.silu(tap @ one["map"]["kernel"] + one["bias"]))
  loss = 0.0
  for offset, x in enumerate(states, start=1):
    logits = layer_norm(params["norm"], x) @ unembedding
    ids, segments = rows["tokens"], rows["segments"]
    valid = (segments[:, offset:] == segments[:, :-offset]) & (
      segments[:, offset:] > 0
    )
    nll = optax.softmax_cross_entropy_with_integer_labels(
      logits[:, :-offset], ids[:, offset:]
    )
    loss += jnp.sum(nll * valid) / valid.sum()
  return loss


@functools.cache
def on_one_device(name):
  """((loss, sums), (gradients, squared norms at the tap)), fused."""
  model, params = example(name)
  return jax.jit(tiny.value_and_grad(model))(
    params, jnp.zeros(3), batch(), jnp.ones(3)
  )


def assert_gradients(actual, expected):
  """Leaf by leaf; a bias of keys has none, but for rounding."""
  assert jax.tree.structure(actual) == jax.tree.structure(expected)
  largest = max(
    float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(expected)
  )
  for got, want in zip(
    jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True
  ):
    np.testing.assert_allclose(
      got, want, rtol=0, atol=1e-4 * np.abs(want).max() + 1e-6 * largest
    )


@pytest.mark.parametrize("name", MODULES)
def test_loss_and_gradients_equal_those_written_by_hand(name):
  model, params = example(name)
  own = MODULES[name]()
  (loss, _), (grads, squared_M) = on_one_device(name)
  expected, (module_grads, head_grads) = jax.jit(
    jax.value_and_grad(functools.partial(own_loss, name), argnums=(0, 1))
  )(own.unpack(params["lm"]), params["heads"], batch())
  assert float(loss) == pytest.approx(float(expected), rel=1e-5)
  assert_gradients(own.unpack(grads["lm"]), module_grads)
  assert_gradients(grads["heads"], head_grads)
  # What is before the module's last layer only the module knows.
  knows_first = model.heads.tap == "last"
  assert [bool(s > 0) for s in squared_M] == [knows_first, True, True]


@pytest.mark.parametrize("name", MODULES)
def test_eight_devices_compute_what_one_does(name):
  model, params = example(name)
  mesh = parallel.make_mesh(config_lib.Mesh(2, 2, 2))
  model = dataclasses.replace(model, mesh=mesh)
  shardings = parallel.shardings(model.abstract(), mesh)
  kernel = shardings["lm"]["module"]["embed"]["embedding"]
  assert kernel.spec == P("fsdp", None)
  args = (
    jax.device_put(params, shardings),
    jax.device_put(jnp.zeros(3), NamedSharding(mesh, P())),
    parallel.place_batch(batch(), mesh),
    jax.device_put(jnp.ones(3), NamedSharding(mesh, P())),
  )
  (loss, _), (grads, _) = jax.jit(tiny.value_and_grad(model))(*args)
  (expected, _), (expected_grads, _) = on_one_device(name)
  assert float(loss) == pytest.approx(float(expected), rel=1e-5)
  assert_gradients(jax.device_get(grads), jax.device_get(expected_grads))


@functools.cache
def trained(name):
  """(model, optimizer, last state, metrics of all steps)."""
  config = config_lib.Config(
    heads=dataclasses.replace(HEADS, tap=TAPS[name]),
    loss=config_lib.Loss(chunk_tokens=64),
    optim=config_lib.Optim(
      peak_lr=3e-2, warmup_steps=2, decay_steps=60, weight_decay=0.01
    ),
  )
  model = model_of(MODULES[name](), config.heads)
  optimizer = make_optimizer(config.optim, model.abstract())
  state = create_state(model, optimizer, jax.random.key(0))
  step = make_train_step(model, optimizer, config)
  pattern = [3, 9, 4, 17, 11]
  rows = tiny.pack(
    [[[pattern[(t + b) % 5] for t in range(T)]] for b in range(4)], T, V
  )
  metrics = []
  for _ in range(30):
    state, latest = step(state, rows)
    metrics.append(jax.device_get(latest))
  return model, optimizer, state, metrics


@pytest.mark.parametrize("name", MODULES)
def test_training_lowers_the_loss_of_every_offset(name):
  *_, metrics = trained(name)
  losses = [m.sums.nll_M / m.sums.count_M for m in metrics]
  assert np.all(losses[-1] < 0.2 * losses[0]), losses[-1]
  assert all(m.is_finite for m in metrics)


@pytest.mark.parametrize("name", MODULES)
def test_a_checkpoint_comes_back_as_it_was(name, tmp_path):
  model, optimizer, state, _ = trained(name)
  with Store(tmp_path) as store:
    store.save(30, state, {}, wait=True)
    restored, _ = store.restore(abstract_state(model, optimizer))
  assert jax.tree.structure(restored) == jax.tree.structure(state)
  for there, here in zip(
    jax.tree.leaves(restored), jax.tree.leaves(state), strict=True
  ):
    np.testing.assert_array_equal(there, here)


def plain_greedy(params, ids, n):
  """The module by itself, the whole text again for every token."""
  own = cached().unpack(params["lm"])

  @jax.jit
  def next_token(tokens_T, length):
    mask = jnp.tril(jnp.ones((32, 32), bool))[None, None]
    logits = CachedDecoder().apply(
      {"params": own}, tokens_T[None], jnp.arange(32)[None], mask
    )
    return jnp.argmax(logits[0, length - 1])

  ids = list(ids)
  for _ in range(n):
    padded = np.zeros(32, np.int32)
    padded[: len(ids)] = ids
    ids.append(int(next_token(padded, len(ids))))
  return tuple(ids[-n:])


def test_drafting_heads_change_nothing_of_plain_decoding():
  model = model_of(cached(), dataclasses.replace(HEADS, kind="block"))
  params = jax.tree.map(
    lambda x: x / 0.3, tiny.random_params(model.abstract(), seed=5)
  )
  prompts = [(1, 2, 3), (7,), (9, 4, 4, 20)]
  requests = [decode.Request(ids=ids, max_new_tokens=12) for ids in prompts]
  spec = decode.Spec(
    model, decode.Tree.from_branching([2, 2]), decode.Stages.of(requests)
  )
  *_, last = decode.generate(
    [spec], decode.decode_params(model, params), requests, batch=3
  )
  for number, ids in enumerate(prompts):
    assert last[number].ids == plain_greedy(params, ids, 12)
    assert last[number].proposed > 0


def test_without_keys_and_values_the_refusal_says_what_is_missing():
  for name in MODULES:
    model, params = example(name)
    with pytest.raises(UserError, match="keys and values of model.n_layers"):
      decode.decode_params(model, params)
  wrong = model_of(cached(), n_kv_heads=1)
  with pytest.raises(UserError, match=r"\(1, 1, 1, 8\).* it returns 2 \("):
    decode.decode_params(wrong, tiny.random_params(wrong.abstract(), 0))


def test_parameters_of_the_module_go_in_and_out_unchanged():
  variables = jax.jit(Decoder().init)(
    jax.random.key(3), *jnp.zeros((2, 1, 1), int), jnp.ones((1, 1, 1, 1), bool)
  )
  own = linen()
  packed = own.pack(variables["params"])
  assert set(packed) == {"module", "final_norm"}
  assert set(packed["final_norm"]) == {"scale", "bias"}
  assert "norm" not in packed["module"]
  tiny.assert_close(own.unpack(packed), variables["params"], 0)
  model = model_of(own)
  made = jax.jit(
    lambda lm: parallel.unbox(model.init_boxed(jax.random.key(0), {"lm": lm}))
  )(packed)
  tiny.assert_close(made["lm"], packed, 0)


def test_matrices_decay_and_vectors_do_not():
  model, _ = example("nnx")
  decays = decay_mask(model.abstract())["lm"]
  assert decays["module"]["embed"]["embedding"]
  assert decays["module"]["layers"]["1"]["attention"]["query"]["kernel"]
  assert not decays["final_norm"]["scale"]
  assert not decays["module"]["layers"]["0"]["mlp"]["bias"]


def test_axes_can_be_named():
  def axes(path, shape):
    if path == "head/kernel":
      return ("embed", "vocab")
    return foreign.default_axes(path, shape)

  def make(axes):
    return model_of(
      foreign.linen_module(
        Decoder(), nn.LayerNorm(), "norm", unembedding="head/kernel",
        method="hidden", axes=axes,
      )
    )  # fmt: skip

  boxes = make(axes).abstract()["lm"]["module"]
  assert boxes["head"]["kernel"].names == ("embed", "vocab")
  assert boxes["place"]["embedding"].names == ("embed", "embed_out")
  for wrong in (("embed", "colour"), ("embed",)):
    with pytest.raises(UserError, match="parameter .*: axes .* name each"):
      make(lambda path, shape, wrong=wrong: wrong).abstract()


class Logical(nn.Module):
  """Names its own axes, for mtpjax or for Flax."""

  @nn.compact
  def __call__(self, tokens, positions, mask, cache):
    embedding = self.param(
      "embedding",
      parallel.logical(nn.initializers.normal(), "vocab", "embed"),
      (V, D), jnp.float32,
    )  # fmt: skip
    head = self.param(
      "head", nn.with_partitioning(nn.initializers.normal(), ("x", "y")), (D, V)
    )
    del head
    nn.LayerNorm(name="norm")(jnp.zeros((1, D)))
    return embedding[tokens]


def test_names_given_by_parallel_logical_stay():
  module = foreign.linen_module(
    Logical(), nn.LayerNorm(), "norm", unembedding="head"
  )
  boxes = model_of(module).abstract()["lm"]["module"]
  assert boxes["embedding"].names == ("vocab", "embed")
  assert boxes["head"].names == ("embed_out", "embed")


class Counting(Decoder):
  def setup(self):
    super().setup()
    self.calls = self.variable("counts", "calls", lambda: jnp.zeros(()))


class Normalised(NnxDecoder):
  def __init__(self, rngs):
    super().__init__(rngs)
    self.average = nnx.BatchNorm(D, rngs=rngs)


def one_line(make, *words):
  with pytest.raises(UserError) as error:
    make()
  text = str(error.value)
  assert "\n" not in text
  for word in words:
    assert word in text, text


def test_mistakes_are_one_line():
  def described(module=None, final_norm="norm", **paths):
    paths = paths or {"unembedding": "head/kernel"}
    return foreign.linen_module(
      module or Decoder(), nn.LayerNorm(), final_norm, method="hidden", **paths
    )

  def abstract(module, heads_config=HEADS, **changes):
    return lambda: model_of(module, heads_config, **changes).abstract()

  one_line(lambda: described(unembedding="a", embedding="b"), "one of them")
  one_line(lambda: described(unembedding="", embedding=""), "one of them")
  one_line(
    abstract(described(final_norm="ln_f")),
    "final_norm ln_f", "'ln_f'", "embed, head, layers_0",
  )  # fmt: skip
  one_line(
    abstract(described(unembedding="head/bias")), "unembedding head/bias"
  )
  one_line(abstract(linen(), vocab_size=V + 1), "(16, 24)", "(16, 25)", "agree")
  one_line(
    abstract(described(embedding="head/kernel"), HEADS), "(24, 16)", "agree"
  )
  one_line(abstract(described(Counting())), "module Counting", "'counts'")
  before_last = dataclasses.replace(HEADS, tap="before_last")
  one_line(abstract(nnx_module(), before_last), "heads.tap: before_last")
  matched = dataclasses.replace(HEADS, matched=True)
  one_line(lambda: model_of(linen(), matched).trunk_layers, "heads.matched")
  one_line(
    lambda: foreign.nnx_module(Normalised, "norm", embedding="embed/embedding"),
    "average/mean", "pure",
  )  # fmt: skip
  one_line(
    lambda: foreign.nnx_module(NnxDecoder, "norms", embedding="embed"),
    "final_norm norms",
  )


class Narrow(Logical):
  def __call__(self, tokens, positions, mask, cache):
    return super().__call__(tokens, positions, mask, cache)[..., : D // 2]


def test_a_width_that_is_not_the_configured_one_is_named():
  module = foreign.linen_module(
    Narrow(), nn.LayerNorm(), "norm", unembedding="head"
  )
  one_line(lambda: model_of(module).abstract(), "8 wide", "d_model is 16")
