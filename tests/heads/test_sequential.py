"""Sequential heads in training: a chain, against the same written out."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import programs
import pytest
import tiny

from mtpjax import config as config_lib
from mtpjax import heads as heads_lib
from mtpjax import losses, parallel
from mtpjax.errors import UserError
from mtpjax.heads import HeadContext
from mtpjax.heads.parts import EVERYTHING, Trained
from mtpjax.losses.targets import look_ahead
from mtpjax.model import Placement

OFFSETS = (1, 2, 3, 4)
WEIGHTS = (1.0, 0.5, 2.0, 1.5)
MODES = ("fused", "remat", "unrolled")
V, D, T = 23, 8, 12
DOCUMENTS = [[5, 1, 6], [2, 9]]  # lengths, row by row


def sequential(**changes):
  fields = dict(kind="sequential", offsets=OFFSETS, tap="last", matched=False)
  return config_lib.Heads(**(fields | changes))


@functools.cache
def a_model(mesh=None, tied=False):
  return tiny.multi_token_model(
    mesh, sequential(), vocab_size=V, d_model=D, tied_embeddings=tied
  )


@functools.cache
def parameters(tied=False):
  return tiny.random_params(a_model(None, tied).abstract(), 5, 0.4)


def the_documents():
  rng = np.random.default_rng(3)
  return [
    [(rng.integers(0, V, n), rng.random(n) < 0.8) for n in row]
    for row in DOCUMENTS
  ]


def a_batch():
  rows = the_documents()
  return tiny.pack(
    [[ids.tolist() for ids, _ in row] for row in rows], T, V,
    [[mask.tolist() for _, mask in row] for row in rows],
  )  # fmt: skip


def loss_of(
  model, mode="fused", targets="labels", only_heads=False, states=None
):
  """(params, probes_M, batch) -> (loss, sums), by the code under test."""
  loss = config_lib.Loss(mode=mode, chunk_tokens=5, targets=targets, z_loss=0.1)

  def f(params, probes_M, batch):
    if states is not None:
      batch = batch | {"hidden": states}
    shifted = losses.batch_targets(batch, OFFSETS)
    coefficients_M = jnp.array(WEIGHTS) * losses.offset_coefficients(
      shifted.counts_M, ()
    )
    trained = Trained(("heads",)) if only_heads else EVERYTHING
    return losses.model_loss(
      model, loss, params, probes_M, batch, coefficients_M, trained
    )

  return f


@functools.cache
def value_and_gradients(*args, **kwargs):
  """(params, probes_M, batch) -> ((loss, sums), gradients of both)."""
  return jax.jit(
    jax.value_and_grad(
      loss_of(*args, **kwargs), argnums=(0, 1), has_aux=True
    )
  )  # fmt: skip


def norm(scale, x):
  return x / jnp.sqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-5) * scale


def layer(params, x_TD):
  """One transformer layer on one document."""

  def turned(x_TNH):
    half = x_TNH.shape[-1] // 2
    angle_TH = jnp.outer(
      jnp.arange(len(x_TNH)), 10_000.0 ** (-jnp.arange(half) / half)
    )[:, None]
    a, b = x_TNH[..., :half], x_TNH[..., half:]
    cos, sin = jnp.cos(angle_TH), jnp.sin(angle_TH)
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1)

  attention = params["attention"]
  y_TD = norm(params["attention_norm"]["scale"], x_TD)
  q, k, v = (
    jnp.einsum("td,dnh->tnh", y_TD, attention[name]["kernel"])
    for name in ("query", "key", "value")
  )
  q, k = turned(q), turned(k)
  group, n = q.shape[1] // k.shape[1], len(x_TD)
  scores_NTS = jnp.einsum("tnh,snh->nts", q, jnp.repeat(k, group, 1))
  scores_NTS /= jnp.sqrt(q.shape[-1])
  scores_NTS = jnp.where(np.tril(np.ones((n, n), bool)), scores_NTS, -jnp.inf)
  weights_NTS = jax.nn.softmax(scores_NTS, axis=-1)
  mixed_TNH = jnp.einsum("nts,snh->tnh", weights_NTS, jnp.repeat(v, group, 1))
  x_TD += jnp.einsum("tnh,nhd->td", mixed_TNH, attention["out"]["kernel"])
  y_TD = norm(params["mlp_norm"]["scale"], x_TD)
  gate, up, down = (params["mlp"][n]["kernel"] for n in ("gate", "up", "down"))
  g_TF = y_TD @ gate
  return x_TD + (g_TF / (1 + jnp.exp(-g_TF)) * (y_TD @ up)) @ down


def chain_by_hand(model, params, ids):
  """h^0 .. h^3 of one document; rows that are not told a token are left out."""
  lm, n = params["lm"], len(ids)
  ids_1T = jnp.asarray(ids)[None]
  out = model.apply_trunk(lm, ids_1T, Placement.whole(ids_1T))
  hidden_TD = out.hidden_BTD[0]
  states = [hidden_TD]
  for k in range(1, min(n, 4)):
    own = jax.tree.map(lambda leaf, k=k: leaf[k - 1], params["heads"])
    told = lm["embedding"][jnp.asarray(ids[k:])]
    matrix = own["projection"]["kernel"]
    states.append(
      layer(
        own["layer"],
        norm(own["embedding_norm"]["scale"], told) @ matrix[:D]
        + norm(own["hidden_norm"]["scale"], states[-1][: n - k]) @ matrix[D:],
      )
    )
  return states


@functools.cache
def by_hand(tied=False):
  """(loss, (nll_M, correct_M, count_M)), gradients: documents apart."""
  model = a_model(None, tied)

  def f(params):
    lm = params["lm"]
    table = lm["embedding"].T if tied else lm["unembedding"]
    terms, nll, hits = ([[] for _ in OFFSETS] for _ in range(3))
    counts = [0] * 4
    for ids, mask in sum(the_documents(), []):
      for m, states in enumerate(chain_by_hand(model, params, ids)):
        logits_TV = norm(lm["final_norm"]["scale"], states) @ table
        at = np.flatnonzero(mask[m + 1 :])
        if not len(at):
          continue
        logits_TV, ids_T = logits_TV[at], ids[m + 1 :][at]
        lse_T = jax.nn.logsumexp(logits_TV, axis=-1)
        nll_T = lse_T - logits_TV[np.arange(len(at)), ids_T]
        nll[m].append(jnp.sum(nll_T))
        terms[m].append(jnp.sum(nll_T + 0.1 * lse_T**2))
        hits[m].append(jnp.sum(jnp.argmax(logits_TV, axis=-1) == ids_T))
        counts[m] += len(at)
    loss = sum(
      w * sum(x) / n for w, x, n in zip(WEIGHTS, terms, counts, strict=True)
    )
    return loss, [
      (sum(a), sum(b), n) for a, b, n in zip(nll, hits, counts, strict=True)
    ]

  return jax.jit(jax.value_and_grad(f, has_aux=True))(parameters(tied))


@pytest.mark.parametrize(
  "mode, tied", [("fused", True), ("remat", False), ("unrolled", False)]
)
def test_every_mode_is_the_chain_written_out(mode, tied):
  (loss, seen), gradients = by_hand(tied)
  params, batch = parameters(tied), a_batch()
  ours = value_and_gradients(a_model(None, tied), mode)(
    params, jnp.zeros(4), batch
  )
  np.testing.assert_allclose(ours[0][0], loss, rtol=2e-6)
  for m, (nll, correct, count) in enumerate(seen):
    np.testing.assert_allclose(ours[0][1].nll_M[m], nll, rtol=1e-5)
    assert ours[0][1].correct_M[m] == correct
    assert ours[0][1].count_M[m] == count > 0
  tiny.assert_close(ours[1][0], gradients, 1e-5)
  # Heads alone: their gradients are the same, and there are no others.
  alone = value_and_gradients(a_model(None, tied), mode, only_heads=True)(
    params, jnp.zeros(4), batch
  )
  np.testing.assert_allclose(alone[0][0], loss, rtol=2e-6)
  tiny.assert_close(alone[1][0]["heads"], gradients["heads"], 1e-5)
  for leaf in jax.tree.leaves(alone[1][0]["lm"]):
    assert not np.any(leaf)


@pytest.mark.parametrize("targets", ["labels", "teacher_soft"])
def test_states_given_stand_for_the_trunk(targets):
  model, batch, params = a_model(), a_batch(), parameters()
  states = jax.jit(model.apply_trunk)(
    params["lm"],
    batch["tokens"],
    Placement.packed(batch["positions"], batch["segments"]),
  ).tap_BTD
  arguments = params, jnp.zeros(4), batch
  run = value_and_gradients(model, "fused", targets, True)(*arguments)
  given = jax.jit(
    jax.value_and_grad(
      loss_of(model, "fused", targets, True, states), has_aux=True
    )
  )(*arguments)
  np.testing.assert_allclose(given[0][0], run[0][0], rtol=1e-6)
  tiny.assert_close(given[1]["heads"], run[1][0]["heads"], 1e-5)


def test_teachers_are_the_same_in_every_mode():
  arguments = parameters(), jnp.zeros(4), a_batch()
  for targets in ("teacher_argmax", "teacher_soft"):
    (loss, _), gradients = value_and_gradients(a_model(), "unrolled", targets)(
      *arguments
    )
    ours = value_and_gradients(a_model(), "fused", targets)(*arguments)
    np.testing.assert_allclose(ours[0][0], loss, rtol=2e-6)
    tiny.assert_close(ours[1][0], gradients[0], 1e-5)


def test_a_probe_reads_what_the_heads_from_it_on_send_back():
  model, params, batch = a_model(), parameters(), a_batch()
  _, (_, squared_M) = value_and_gradients(model)(params, jnp.zeros(4), batch)
  context = HeadContext(Placement.packed(batch["positions"], batch["segments"]))
  targets = losses.batch_targets(batch, OFFSETS)
  coefficients_M = jnp.array(WEIGHTS) * losses.offset_coefficients(
    targets.counts_M, ()
  )

  def go_on(hidden_BTD, k):
    own = jax.tree.map(lambda leaf: leaf[k - 1], params["heads"])
    told = jnp.asarray(params["lm"]["embedding"])[
      look_ahead(batch["tokens"], k)
    ]
    return model.head.apply(
      {"params": own}, hidden_BTD, context.replace(ahead_BTD=told)
    )

  def behind(hidden_BTD, k):
    """The loss of heads k, k + 1, ... by the state that head k reads."""
    total = 0.0
    for m in range(k, 4):
      hidden_BTD = go_on(hidden_BTD, m)
      logits_BTV = model.trunk.logits(params["lm"], hidden_BTD)
      lse_BT = jax.nn.logsumexp(logits_BTV, axis=-1)
      picked_BT = jnp.take_along_axis(
        logits_BTV, targets.ids_MBT[m][..., None], axis=-1
      )[..., 0]
      terms_BT = lse_BT - picked_BT + 0.1 * lse_BT**2
      total += coefficients_M[m] * jnp.sum(terms_BT * targets.valid_MBT[m])
    return total

  @jax.jit
  def expected():
    state_BTD = model.apply_trunk(
      params["lm"], batch["tokens"], context.placement
    ).tap_BTD
    squares = []
    for k in (1, 2, 3):
      squares.append(jnp.sum(jax.grad(behind)(state_BTD, k) ** 2))
      state_BTD = go_on(state_BTD, k)
    return jnp.stack(squares)

  np.testing.assert_allclose(squared_M[1:], expected(), rtol=1e-4)
  assert (np.asarray(squared_M) > 0).all()


def test_a_row_sees_its_document_up_to_the_token_it_is_told():
  model, params = a_model(), parameters()
  segments_BT = np.array([[1] * 5 + [2] * 7])
  positions_BT = jnp.asarray(tiny.positions(segments_BT))
  context = HeadContext(
    Placement.packed(positions_BT, jnp.asarray(segments_BT))
  )
  direction_D = np.random.default_rng(1).normal(size=D)
  tokens_BT = np.random.default_rng(0).permutation(V)[:T][None]

  @jax.jit
  def jacobian(embedding_VD):
    def f(embedding_VD):
      lm = params["lm"] | {"embedding": embedding_VD}
      out = model.apply_trunk(lm, tokens_BT, context.placement)
      stack = model.wiring.stack(
        model, params | {"lm": lm}, out.tap_BTD, tokens_BT, context,
        jnp.zeros(3),
      )  # fmt: skip
      return stack.per_offset[:, 0] @ direction_D

    return jax.jacrev(f)(embedding_VD)

  by_token_MTV = np.any(np.asarray(jacobian(params["lm"]["embedding"])), -1)
  # Every token occurs once, so that it stands for its position.
  reads_MTT = by_token_MTV[:, :, tokens_BT[0]]
  for k in range(1, 4):
    for t in range(T):
      last = 4 if t < 5 else 11
      if t + k <= last:
        expected = [(5 if t > 4 else 0) <= s <= t + k for s in range(T)]
        assert reads_MTT[k - 1, t].tolist() == expected


@pytest.mark.parametrize("sizes", [(4, 2, 1), (2, 2, 2)])
def test_eight_devices_compute_what_one_does(sizes):
  batch = a_batch()
  batch = {k: np.tile(x[:2], (4, 1)) for k, x in batch.items()}
  arguments = parameters(), jnp.zeros(4), batch
  expected = value_and_gradients(a_model())(*arguments)
  mesh = parallel.make_mesh(config_lib.Mesh(*sizes))
  model = a_model(mesh)
  placed = jax.device_put(
    parameters(), parallel.shardings(model.abstract(), mesh)
  )
  got = value_and_gradients(model)(
    placed, jnp.zeros(4), parallel.place_batch(batch, mesh)
  )
  np.testing.assert_allclose(got[0][0], expected[0][0], rtol=1e-6)
  tiny.assert_close(got[1], expected[1], 1e-4)


def test_logits_of_one_offset_at_a_time_are_alive():
  def temporary_bytes(mode, n):
    model = tiny.multi_token_model(
      None, sequential(offsets=tuple(range(1, n + 1))), vocab_size=8192,
      d_model=16, d_ff=32,
    )  # fmt: skip
    loss = config_lib.Loss(mode=mode, chunk_tokens=256)
    ids = jax.ShapeDtypeStruct((4, 128), jnp.int32)
    batch = dict(tokens=ids, segments=ids, positions=ids, loss_mask=ids)
    step = programs.jit_unrun(tiny.value_and_grad(model, loss))
    ones = jax.ShapeDtypeStruct((n,), jnp.float32)
    lowered = step.lower(parallel.unbox(model.abstract()), ones, batch, ones)
    return programs.temporary_bytes(lowered.compile())

  logits = 4 * 4 * 128 * 8192
  states = 4 * 4 * 128 * 16
  # Per head a few states and gradients of states, and no logits.
  assert temporary_bytes("fused", 4) - temporary_bytes("fused", 2) < 16 * states
  assert temporary_bytes("unrolled", 4) - temporary_bytes("unrolled", 2) > (
    2 * logits
  )


def test_matched_depth_counts_their_parameters():
  config = dict(n_layers=8, vocab_size=V)

  def total(model):
    return heads_lib.count_params(model)

  baseline = total(
    tiny.multi_token_model(None, config_lib.Heads(offsets=(1,)), **config)
  )["lm"]
  eight = tiny.multi_token_model(
    None, config_lib.Heads(offsets=(1,)), **(config | {"n_layers": 9})
  )
  layer_size = total(eight)["lm"] - baseline
  for n in (2, 4):
    model = tiny.multi_token_model(
      None, sequential(offsets=tuple(range(1, n + 1)), matched=True), **config
    )
    depth, difference = model.matching()
    counts = total(model)
    # A layer, a matrix of two widths to one, and two scales.
    assert counts["heads"] == (n - 1) * (layer_size + 2 * 32 * 32 + 2 * 32)
    assert counts["lm"] + counts["heads"] - baseline == difference
    assert abs(difference) <= layer_size / 2
    assert model.trunk_layers == depth < 8


def test_flops_count_the_layers_of_the_heads():
  def flops(kind, **changes):
    return heads_lib.train_flops_per_token(
      tiny.multi_token_model(
        None, config_lib.Heads(kind=kind, matched=False, **changes)
      ),
      64,
    )

  projections = 6 * 3 * (2 * 32 * 32 + 2 * 32)
  assert flops("sequential", tap="last") == flops("block") + projections


@pytest.mark.parametrize(
  "changes, words",
  [
    ({"tap": "before_last"}, ("heads.tap: 'before_last'", "--heads.tap last")),
    ({"tap": "normed"}, ("heads.tap: 'normed'", "--heads.tap last")),
    ({"offsets": (1, 2, 4)}, ("heads.offsets: (1, 2, 4)", "give 1,2,3")),
    ({"offsets": (1, 3)}, ("heads.offsets: (1, 3)", "give 1,2")),
    ({"unembedding": "copied"}, ("heads.unembedding: 'copied'", "medusa")),
    ({"n_layers": 2}, ("heads.n_layers: 2", "medusa")),
  ],
)
def test_what_a_chain_cannot_be_is_one_line(changes, words):
  with pytest.raises(UserError) as error:
    tiny.multi_token_model(None, sequential(**changes))
  assert "\n" not in str(error.value)
  for word in words:
    assert word in str(error.value)


def test_a_head_alone_is_one_line():
  model, params = a_model(), parameters()
  own = jax.tree.map(lambda leaf: leaf[0], params["heads"])
  ones = jnp.ones((1, 2), jnp.int32)
  with pytest.raises(UserError, match="^heads.kind: 'sequential'") as error:
    model.apply_head(
      own, params["lm"]["final_norm"], jnp.zeros((1, 2, D)),
      HeadContext(Placement.packed(ones, ones)),
    )  # fmt: skip
  assert "\n" not in str(error.value)
