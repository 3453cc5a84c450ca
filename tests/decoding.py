"""Small models, their decoding, and a reference that has no cache.

All files here share models, trees and buckets, so that programs are compiled
once for all of them.
"""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from mtpjax import config as config_lib
from mtpjax import decode, heads, parallel
from mtpjax.decode import batch as batches
from mtpjax.decode import step as steps
from mtpjax.model import Placement

V, D = 11, 16
BLOCK = config_lib.Heads(matched=False)
CHAIN = decode.Tree.chain(3)
ROOT = decode.Tree.root()
WIDE = decode.Tree.from_rank_paths(
  [(0,), (1,), (0, 0), (1, 0), (0, 1), (0, 0, 0), (1, 0, 2)]
)
REPLAYED = 64  # tokens the reference pads to


@functools.cache
def multi_token_model(heads_config=BLOCK):
  config = config_lib.Model(
    vocab_size=V,
    d_model=D,
    n_layers=2,
    n_attention_heads=4,
    n_kv_heads=2,
    d_head=4,
    d_ff=32,
    dtype="float32",
  )
  return heads.MultiTokenModel(
    config, heads_config, parallel.single_device_mesh()
  )


@functools.cache
def _abstract(model):
  return parallel.unbox(model.abstract())


@functools.cache
def _to_decode(model):
  return jax.jit(functools.partial(decode.decode_params, model))


def random_params(model, seed):
  """Returns stacked parameters, for the reference, as NumPy arrays.

  Larger than at the start of a training, so that few tokens are close.
  """
  rng = np.random.default_rng(seed)

  def draw(path, leaf):
    x = rng.normal(size=leaf.shape)
    is_scale = path[-1].key == "scale"
    return np.asarray(1.5 + 0.2 * x if is_scale else 0.4 * x, leaf.dtype)

  return jax.tree_util.tree_map_with_path(draw, _abstract(model))


def to_decode(model, params):
  return _to_decode(model)(params)


def spec_of(model, tree, requests=(), **changes):
  """The program of these requests; sampled, so that tests share programs."""
  stages = dataclasses.replace(decode.Stages.of(requests), is_sampled=True)
  return decode.Spec(model, tree, **({"stages": stages} | changes))


def reports(
  model, params, tree, requests, eos_ids=(), is_sampled=True, batch=4,
  chunk_passes=64, find_stop=None, **changes,
):  # fmt: skip
  """Yields [result of each request], after every report of `generate`.

  `params` are those of decoding; a request that waits has None.
  """
  spec = spec_of(model, tree, requests, **changes)
  if not is_sampled:
    stages = dataclasses.replace(spec.stages, is_sampled=False)
    spec = dataclasses.replace(spec, stages=stages)
  latest = [None] * len(requests)
  with jax.default_matmul_precision("highest"):
    for results in decode.generate(
      [spec], params, requests, eos_ids, batch, chunk_passes, find_stop
    ):
      for number, result in results.items():
        latest[number] = result
      yield list(latest)


def run(*args, **kwargs):
  """Returns the last report."""
  *_, last = reports(*args, **kwargs)
  return last


def start(model, params, tree, requests, eos_ids=(), **changes):
  """Returns (spec, tables, state) after the prompts."""
  spec = spec_of(model, tree, requests, **changes)
  packer = batches.Packer.of(spec, requests, eos_ids)
  packed = packer.pack(requests)
  with jax.default_matmul_precision("highest"):
    state = batches.empty_state(
      spec, packed["controls"], len(requests), packer.capacity
    )
    rows_R = jnp.minimum(
      jnp.arange(packed["prompt_RT"].shape[0]), len(requests) - 1
    )
    state = batches.admit(spec, params, packer.tables, state, packed, rows_R)
  return spec, packer.tables, state


def advance(spec, params, tables, state, passes):
  with jax.default_matmul_precision("highest"):
    return batches.run_chunk(spec, params, tables, state, jnp.int32(passes))


def read(state):
  return [trace.result() for trace in batches.read_traces(state)]


def candidates(spec, params, tables, state, noise_BJV):
  """Returns (what a drafter ranks, all depths joined, and its drafts)."""
  ranked = []
  context = steps.context_of(spec, params, tables, state, noise_BJV)

  def rank(*arguments):
    ranked.append(context.rank(*arguments))
    return ranked[-1]

  drafts = spec.drafter.propose(context._replace(rank=rank), state.draft)
  joined = jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), *ranked)
  return joined, drafts


def random_requests(seed, temperature, n=4):
  """Prompts of 1 to 20 tokens, budgets of 1 to 24."""
  rng = np.random.default_rng(seed)
  return [
    decode.Request(
      ids=tuple(rng.integers(0, V, rng.integers(1, 21)).tolist()),
      max_new_tokens=int(rng.integers(1, 25)),
      temperature=temperature,
      seed=seed,
      index=i,
    )
    for i in range(n)
  ]


@functools.cache
def _forward(trunk):
  @jax.jit
  def forward(lm_params, tokens_BT):
    positions_BT = jnp.broadcast_to(
      jnp.arange(tokens_BT.shape[1]), tokens_BT.shape
    )
    out = trunk.apply(
      {"params": lm_params},
      tokens_BT,
      Placement.packed(positions_BT, jnp.ones_like(tokens_BT)),
    )
    return trunk.logits(lm_params, out.hidden_BTD)

  return forward


@jax.jit
def _all_noise(seeds_B, indices_B):
  def at(seed, index, position):
    key = jax.random.fold_in(jax.random.key(seed), index)
    return jax.random.gumbel(jax.random.fold_in(key, position), (V,))

  return jax.vmap(lambda s, i: jax.vmap(lambda p: at(s, i, p))(
    jnp.arange(REPLAYED)))(seeds_B, indices_B)  # fmt: skip


def forward_logits(model, params, texts):
  """Logits [B, T, V] behind every token of whole texts, float64, no cache."""
  tokens_BT = np.zeros((len(texts), REPLAYED), np.int32)
  for b, text in enumerate(texts):
    tokens_BT[b, : len(text)] = text
  with jax.default_matmul_precision("highest"):
    logits_BTV = _forward(model.trunk.clone(tap=config_lib.TAPS["last"]))(
      params["lm"], tokens_BT
    )
  return np.asarray(logits_BTV, np.float64)


def reference_logits(model, params, requests, texts):
  """Logits behind every token of whole texts, and the noise there.

  Args:
    model: the model.
    params: stacked.
    requests: any number of them.
    texts: prompt and what followed, for each.

  Returns:
    NumPy (logits_BTV, noise_BTV); [b, t] is what chooses token t + 1.
  """
  logits_BTV = forward_logits(model, params, texts)
  noise_BTV = np.asarray(
    _all_noise(
      np.array([r.seed for r in requests]),
      np.array([r.index for r in requests]),
    )
  )
  # The noise of the token that is chosen, one further on.
  return logits_BTV, np.roll(noise_BTV, -1, axis=1)


def reference_scores(model, params, requests, texts):
  """Scores (with noise, temperature alone) and logits; see above.

  Args:
    model: the model.
    params: stacked.
    requests: any number of them.
    texts: prompt and what followed, for each.

  Returns:
    NumPy (scores_BTV, logits_BTV); [b, t] is what chooses token t + 1.
  """
  logits_BTV, noise_BTV = reference_logits(model, params, requests, texts)
  scores_BTV = np.stack([
    logits_TV / r.temperature + noise_TV if r.temperature else logits_TV
    for r, logits_TV, noise_TV in zip(
      requests, logits_BTV, noise_BTV, strict=True
    )
  ])  # fmt: skip
  return scores_BTV, logits_BTV


def regenerate(model, params, requests, eos_ids=()):
  """Generates by running everything again for each token."""
  texts = [list(r.ids) for r in requests]
  reasons = [None] * len(requests)
  while None in reasons:
    scores_BTV, _ = reference_scores(model, params, requests, texts)
    for b, request in enumerate(requests):
      if reasons[b]:
        continue
      texts[b].append(int(np.argmax(scores_BTV[b, len(texts[b]) - 1])))
      if texts[b][-1] in eos_ids:
        reasons[b] = "eos"
      elif len(texts[b]) - len(request.ids) == request.max_new_tokens:
        reasons[b] = "length"
  return [
    (tuple(text[len(r.ids) :]), reason)
    for r, text, reason in zip(requests, texts, reasons, strict=True)
  ]


def margins(model, params, requests, results):
  """Yields (b, n, margin, chosen is best, log-probability) per token.

  From one pass over each finished text: what chose a token cannot see it.
  """
  texts = [
    (*r.ids, *result.ids) for r, result in zip(requests, results, strict=True)
  ]
  scores_BTV, logits_BTV = reference_scores(model, params, requests, texts)
  for b, (request, result) in enumerate(zip(requests, results, strict=True)):
    for n, token in enumerate(result.ids):
      at = len(request.ids) - 1 + n
      runner_up, best = np.sort(scores_BTV[b, at])[-2:]
      logits_V = logits_BTV[b, at]
      logprob = logits_V[token] - np.log(np.sum(np.exp(logits_V)))
      yield (
        b, n, best - runner_up, np.argmax(scores_BTV[b, at]) == token, logprob
      )  # fmt: skip


class Plan:
  """In the place of a governor: programs take turns as planned."""

  def __init__(self, *levels):
    self._levels = itertools.cycle(levels)
    self.chosen, self.observed, self.ticks = [], [], 0

  def choose(self, kinds):
    assert list(kinds)
    self.chosen.append(next(self._levels))
    return self.chosen[-1]

  def observe(self, kind, level, tokens, passes):
    assert level == self.chosen[-1]
    self.observed.append((tokens, passes))

  def tick(self):
    self.ticks += 1


def expected_ending(request, result, eos_ids):
  """Returns the finish reason that the ids themselves show."""
  assert 1 <= len(result.ids) <= request.max_new_tokens
  assert not set(result.ids[:-1]) & set(eos_ids)
  if result.ids[-1] in eos_ids:
    return "eos"
  assert len(result.ids) == request.max_new_tokens
  return "length"


def committed_per_pass(all_reports):
  """[passes, rows]: tokens by which each report grew; chunks of one pass."""
  lengths = [[len(r.ids) for r in report] for report in all_reports]
  return [
    [b - a for a, b in zip(before, after, strict=True)]
    for before, after in itertools.pairwise(lengths)
  ]


def counter_params(shifts=(0, 0, 0), step=1, constant=None, is_flat=False):
  """A model that counts: behind token i comes (i + step) % V, always.

  Attention and trunk MLPs write nothing, so the hidden state is the one-hot
  embedding of the token. Head of offset m turns it into that of the token
  m - 1 steps further, plus its shift: with shift 0 every draft is right.

  Args:
    shifts: per extra head; anything but 0 (mod V) makes its drafts wrong.
    step: what is added to a token.
    constant: this token always comes instead.
    is_flat: all logits are 0, so that what comes is the noise alone.

  Returns:
    Parameters of decoding.
  """
  model = multi_token_model()
  params = random_params(model, 0)
  lm, block = params["lm"], params["heads"]["layer"]
  eye = np.eye(V, D, dtype=np.float32)
  lm["embedding"] = eye if constant is None else eye[[0] * V]
  lm["unembedding"] = np.zeros((D, V), np.float32)
  for i in range(V):
    next_token = i + step if constant is None else i + constant
    lm["unembedding"][i, next_token % V] = not is_flat
  lm["final_norm"]["scale"][:] = 3
  for layers in (lm["layers"], block):
    layers["attention"]["out"]["kernel"][:] = 0
    layers["mlp"]["down"]["kernel"][:] = 0
  mlp = {name: part["kernel"] for name, part in block["mlp"].items()}
  block["mlp_norm"]["scale"][:] = 1
  mlp["gate"][:] = mlp["up"][:] = np.eye(D, 32)
  y = np.sqrt(D)  # the norm of a one-hot state
  gain = y * y / (1 + np.exp(-y))
  for m, shift in enumerate(shifts):
    far = (m + 1) * step if constant is None else 0
    for i in range(V):
      mlp["down"][m, i] = (eye[(i + far + shift) % V] - eye[i]) / gain
  return to_decode(model, params)
