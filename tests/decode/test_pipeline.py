"""The logits pipeline against plain loops in float64, node by node."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mtpjax import decode
from mtpjax.decode import filters, history, sampling, verifiers
from mtpjax.decode.controls import ControlShapes, Stages
from mtpjax.decode.grammar import Grammar
from mtpjax.decode.grammar import automaton as automata
from mtpjax.decode.state import DecodeState

V = 1003  # no multiple of 32, nor of anything
FEW = (0, 1, 5, 1002)  # tokens of texts: so few that sequences recur
EOS = (1002, 7)
TREE = decode.Tree.from_rank_paths(
  [(0,), (1,), (0, 0), (1, 0), (0, 1), (0, 0, 0), (1, 0, 2)]
)
ROWS = 8

# Halves, doubles and quarters: every product and sum is exact in float32 too,
# so that ties are the same ties.
SETTINGS = {
  "penalties": dict(
    repetition_penalty=[1, 2, 4, 0.5, 2, 1, 1, 2],
    frequency_penalty=[0, 0.5, -0.25, 0, 1, 2, 0, 0.25],
    presence_penalty=[0, 0, 0.75, 0, -0.5, 0, 1, 0.25],
  ),
  "bias": dict(
    logit_bias=[
      (), ((1002, -100),), ((0, 2.5), (1, -1)), ((5, 4), (5, 4)), (),
      ((1, 100),), ((7, -2),), ((0, 0.5),),
    ]
  ),
  "bad-words": dict(
    bad_words=[
      (), ((5,),), ((0, 1),), ((1, 5, 0), (5, 5, 5)), ((0,), (1, 0), (5, 1, 0)),
      ((1002, 1002),), ((0, 0), (1, 1), (5, 5)), ((1, 0, 1), (0, 1, 0)),
    ]
  ),
  "least": dict(min_new_tokens=[0, 1, 3, 5, 7, 8, 9, 40]),
  "least-and-stops": dict(
    min_new_tokens=[0, 1, 3, 5, 7, 8, 9, 40],
    stop_sequences=[
      ((5,),), (), ((0, 1), (1,)), ((0, 1, 5),), ((1, 0), (5, 5, 0)),
      ((0, 0, 0, 0, 1),), ((5, 1),), ((0,), (1, 1), (5, 0)),
    ],
  ),
  "grammar": {},
  "temperature": dict(temperature=[0, 0.5, 2, 1, 0, 4, 0.25, 2]),
  "top-k": dict(top_k=[0, 1, 2, 3, 7, 50, 1003, 5000]),
  "top-p": dict(top_p=[1, 0.5, 0.9, 0.05, 0.999, 0.7, 0.3, 1e-6]),
  "min-p": dict(min_p=[0, 0.5, 0.1, 0.9, 0.003, 0.7, 0.02, 0.25]),
}  # fmt: skip
SETTINGS["truncation"] = {
  name: values
  for stage in ("temperature", "top-k", "top-p", "min-p")
  for name, values in SETTINGS[stage].items()
}
SETTINGS["truncation"] |= dict(
  temperature=[2, 0.5, 2, 1, 4, 4, 0.25, 2],
  top_k=[0, 9, 20, 30, 0, 50, 1003, 5],
)
SETTINGS["all"] = {
  name: values
  for stage in ("penalties", "bias", "bad-words", "least-and-stops",
                "truncation")
  for name, values in SETTINGS[stage].items()
}  # fmt: skip


def random_grammar(rng, n_states=5):
  edges = [
    np.sort(rng.choice(V, n, replace=False))
    for n in rng.integers(1, 400, n_states)
  ]
  # The tokens of texts lead somewhere now and then.
  edges = [np.union1d(e, rng.choice(FEW, 2)) for e in edges]
  starts_G1 = np.cumsum([0, *map(len, edges)])
  tokens_E = np.concatenate(edges)
  return Grammar(
    "random", V, starts_G1, tokens_E, rng.integers(0, n_states, len(tokens_E))
  )


@dataclasses.dataclass
class Case:
  """Rows of prompts, texts, tree tokens and logits."""

  requests: list
  prompts: list
  texts: list
  tokens_BQ: np.ndarray
  logits_BQV: np.ndarray

  def arrays(self):
    """What `final_logits` gets."""
    stages = Stages.of(self.requests)
    controls = ControlShapes.of(stages, self.requests, V).pack(self.requests)
    grammars = [r.grammar for r in self.requests if r.grammar]
    table, starts = None, []
    if grammars:
      table, starts = automata.merge(grammars, V)
    grammar_B = []
    for request, text in zip(self.requests, self.texts, strict=True):
      state = 0
      if request.grammar:
        state = starts[0] + follow(request.grammar, text)
        starts = starts[1:]
      grammar_B.append(state)
    tokens_BS = np.full((ROWS, 40), 1, np.int32)  # garbage behind the root
    counts_BV = np.zeros((ROWS, V), np.int32)
    seen_BV = np.zeros((ROWS, V), bool)
    for b, (prompt, text) in enumerate(
      zip(self.prompts, self.texts, strict=True)
    ):
      tokens_BS[b, : len(prompt) + len(text)] = prompt + text
      np.add.at(counts_BV[b], text, 1)
      seen_BV[b, prompt] = True
    fields = {f.name: None for f in dataclasses.fields(DecodeState)}
    fields |= dict(
      tokens_BS=jnp.asarray(tokens_BS),
      prompt_length_B=jnp.array([len(p) for p in self.prompts]),
      length_B=jnp.array(
        [len(p) + len(t) - 1
         for p, t in zip(self.prompts, self.texts, strict=True)]
      ),
      controls=controls,
      grammar_B=jnp.array(grammar_B),
    )  # fmt: skip
    if stages.penalises:
      fields |= dict(
        counts_BV=jnp.asarray(counts_BV), seen_BV=jnp.asarray(seen_BV)
      )
    eos_ids_E = jnp.array([*EOS, -1])
    return stages, sampling.Tables(eos_ids_E, table), DecodeState(**fields)

  def run(self):
    stages, tables, state = self.arrays()
    return np.asarray(
      run_pipeline(
        stages, tables, state, jnp.asarray(self.tokens_BQ),
        jnp.asarray(self.logits_BQV, jnp.float32),
      )
    )  # fmt: skip


@functools.partial(jax.jit, static_argnames=("stages", "tree"))
def run_pipeline(stages, tables, state, tokens_BQ, logits_BQV, tree=TREE):
  at_nodes = history.at_nodes(state, tables.automaton, tree, tokens_BQ)
  return sampling.final_logits(
    stages, tables, state.controls, state.seen_BV, at_nodes, logits_BQV
  )


def follow(grammar, tokens):
  """The state behind tokens; one that is not allowed changes nothing."""
  state = 0
  for token in tokens:
    there, leads_to = grammar.edges(state)
    if token in there:
      state = int(leads_to[list(there).index(token)])
  return state


def make_case(seed, stage):
  rng = np.random.default_rng(seed)
  requests = []
  for b in range(ROWS):
    own = {name: values[b] for name, values in SETTINGS[stage].items()}
    has_grammar = stage in ("grammar", "all") and b % 2
    if has_grammar:
      own["grammar"] = random_grammar(rng)
    requests.append(decode.Request((1,), 99, **own))
  draw = lambda n: rng.choice(FEW, n).tolist()  # noqa: E731
  # Quarters: many ties. A few tokens that no stage has ruled out are -inf.
  logits_BQV = rng.integers(-20, 21, (ROWS, TREE.size, V)) / 4.0
  logits_BQV[rng.random(logits_BQV.shape) < 0.05] = -np.inf
  logits_BQV[..., [7, *FEW]] = rng.integers(8, 30, (ROWS, TREE.size, 5)) / 4.0
  return Case(
    requests,
    [draw(rng.integers(1, 8)) for _ in range(ROWS)],
    [draw(n) for n in (1, 1, 2, 3, 4, 5, 7, 9)],
    rng.choice(FEW, (ROWS, TREE.size)),
    logits_BQV,
  )


def ends_with(tokens, sequence):
  return len(tokens) >= len(sequence) and tuple(
    tokens[len(tokens) - len(sequence) :]
  ) == tuple(sequence)


def keep_largest(logits_V, weights_V, target):
  """The fewest of the largest that reach the target, and who ties."""
  held, kept = 0.0, np.zeros(V, bool)
  for value in sorted(set(logits_V.tolist()), reverse=True):
    is_here_V = logits_V == value
    kept |= is_here_V
    held += weights_V[is_here_V].sum()
    # Rounding must not be what decides.
    assert target == round(target) or abs(held - target) > 1e-6
    if held >= target:
      break
  return kept


def softmax(logits_V):
  mass_V = np.exp(logits_V - logits_V.max())
  return mass_V / mass_V.sum()


def by_hand(request, prompt, text, logits_V):
  """The pipeline for one node; `text` holds the path to it."""
  r, x = request, np.array(logits_V, np.float64)
  if r.repetition_penalty != 1:
    for token in set(prompt) | set(text):
      x[token] *= (
        1 / r.repetition_penalty if x[token] > 0 else r.repetition_penalty
      )
  for token in set(text):
    x[token] -= r.frequency_penalty * text.count(token) + r.presence_penalty
  for token, value in r.logit_bias:
    x[token] += value
  for word in r.bad_words:
    if ends_with(text, word[:-1]):
      x[word[-1]] = -np.inf
  if len(text) < r.min_new_tokens:
    x[list(EOS)] = -np.inf
    for sequence in r.stop_sequences:
      if ends_with(text, sequence[:-1]):
        x[sequence[-1]] = -np.inf
  if r.grammar is not None:
    there, _ = r.grammar.edges(follow(r.grammar, text))
    x[np.setdiff1d(np.arange(V), there)] = -np.inf
  if r.temperature:
    x /= r.temperature
  if r.top_k:
    x[~keep_largest(x, np.ones(V), r.top_k)] = -np.inf
  if r.top_p < 1:
    x[~keep_largest(x, softmax(x), r.top_p)] = -np.inf
  if r.min_p:
    x[x < x.max() + np.log(r.min_p)] = -np.inf
  return x


def paths():
  """The nodes from the root's child down to each node."""
  found = [[]]
  for node in range(1, TREE.size):
    found.append([*found[TREE.parents[node]], node])
  return found


@pytest.mark.parametrize("stage", SETTINGS)
def test_every_node_equals_a_loop_over_its_own_history(stage):
  n_changed = 0
  for seed in range(4 if stage == "all" else 2):
    case = make_case(seed, stage)
    final_BQV = case.run()
    for b, request in enumerate(case.requests):
      for q, path in enumerate(paths()):
        text = case.texts[b] + case.tokens_BQ[b, path].tolist()
        want_V = by_hand(request, case.prompts[b], text, case.logits_BQV[b, q])
        np.testing.assert_allclose(
          final_BQV[b, q], want_V, rtol=1e-6, atol=0, err_msg=f"{b} {q}"
        )
        n_changed += not np.array_equal(want_V, case.logits_BQV[b, q])
  assert n_changed > 0.5 * (seed + 1) * ROWS * TREE.size / 2


def test_the_settings_of_a_row_change_no_other_row():
  case = make_case(9, "all")
  whole_BQV = case.run()
  for b in (0, 3, 7):
    # Others as neutral as can be, but for the stages that there must be.
    other = make_case(9, "all")
    other.requests = [
      r if i == b else dataclasses.replace(
        case.requests[(i + 1) % ROWS], grammar=r.grammar
      )
      for i, r in enumerate(case.requests)
    ]  # fmt: skip
    np.testing.assert_array_equal(other.run()[b], whole_BQV[b])


@pytest.mark.parametrize("text, path, is_banned", [
  ([5, 0, 1], [], True),  # in the text
  ([5], [0, 1], True),  # in the path
  ([5, 0], [1], True),  # across both
  ([1], [], False),  # would be across the prompt's end
  ([], [0, 1], True),  # nothing before, and yet enough
  ([0], [5, 1], False),
])  # fmt: skip
def test_where_a_bad_word_may_begin(text, path, is_banned):
  # The word is 0 1 1002; every prompt ends with 0.
  request = decode.Request((1,), 99, bad_words=((0, 1, 1002),))
  chain = [0, *(TREE.rank_paths.index((0,) * n) + 1 for n in (1, 2))]
  node = chain[len(path)]
  tokens_BQ = np.full((ROWS, TREE.size), 5)
  tokens_BQ[:, chain[1 : len(path) + 1]] = path
  # An empty text is one whose root is the prompt's last token.
  case = Case(
    [request] * ROWS, [[5, 0]] * ROWS, [text] * ROWS, tokens_BQ,
    np.zeros((ROWS, TREE.size, V)),
  )  # fmt: skip
  final_BQV = case.run()
  assert np.isneginf(final_BQV[:, node, 1002]).all() == is_banned
  assert not np.isneginf(final_BQV[:, node, :1002]).any()


def test_a_sampled_token_of_no_mass_never_comes():
  case = make_case(3, "all")
  stages, tables, state = case.arrays()
  final_BQV = run_pipeline(
    stages, tables, state, jnp.asarray(case.tokens_BQ),
    jnp.asarray(case.logits_BQV, jnp.float32),
  )  # fmt: skip
  # Noise as large as it gets belongs to tokens that are ruled out.
  noise_BQV = jnp.where(jnp.isneginf(final_BQV), 1e30, 0.0)
  scores_BQV = sampling.choose(state.controls, final_BQV, noise_BQV)
  chosen_BQ1 = np.asarray(jnp.argmax(scores_BQV, axis=-1))[..., None]
  chosen = np.take_along_axis(np.asarray(final_BQV), chosen_BQ1, axis=-1)
  assert np.isfinite(chosen).all()


def test_a_frequency_penalty_counts_the_drafts_before():
  """Drafts 1 1 1: the first is right, and makes 15 the better one."""
  tree = decode.Tree.chain(3)
  request = decode.Request((3,), 9, frequency_penalty=1.5)
  stages = Stages.of([request])
  controls = ControlShapes.of(stages, [request], 16).pack([request])
  fields = {f.name: None for f in dataclasses.fields(DecodeState)}
  state = DecodeState(**fields).replace(
    tokens_BS=jnp.array([[3, 2, 0, 0, 0]]), prompt_length_B=jnp.array([1]),
    length_B=jnp.array([1]), controls=controls, grammar_B=jnp.array([0]),
    counts_BV=jnp.zeros((1, 16), jnp.int32).at[0, 2].set(1),
    seen_BV=jnp.zeros((1, 16), bool).at[0, 3].set(True),
  )  # fmt: skip
  tokens_BQ = jnp.array([[2, 1, 1, 1]])
  logits_BQV = jnp.zeros((1, 4, 16)).at[..., 1].set(5).at[..., 15].set(4)
  final_BQV = run_pipeline(
    stages, sampling.Tables(jnp.array([-1]), None), state, tokens_BQ,
    logits_BQV, tree,
  )  # fmt: skip
  np.testing.assert_array_equal(final_BQV[0, :, 1], [5, 3.5, 2, 0.5])
  np.testing.assert_array_equal(final_BQV[0, :, 2], [-1.5] * 4)
  np.testing.assert_array_equal(final_BQV[0, :, 3], [0] * 4)  # the prompt's
  verdict = verifiers.match(
    tree, tokens_BQ, jnp.ones((1, 4), bool), jnp.argmax(final_BQV, axis=-1)
  )
  assert verdict.n_tokens_B.tolist() == [2]
  assert verdict.tokens_BJ[0, :2].tolist() == [1, 15]


_final_logits = jax.jit(sampling.final_logits, static_argnums=0)


def support(probs, **settings):
  request = decode.Request((1,), 9, **settings)
  stages = Stages.of([request])
  controls = ControlShapes.of(stages, [request], len(probs)).pack([request])
  none = history.History(jnp.zeros((1, 1), int), None, None, None)
  final_BQV = _final_logits(
    stages, sampling.Tables(jnp.array([-1]), None), controls, None, none,
    np.log(np.array(probs, np.float32))[None, None],
  )  # fmt: skip
  return np.flatnonzero(np.asarray(final_BQV[0, 0]) > -np.inf).tolist()


def test_top_p_comes_after_the_temperature():
  probs = [0.62, 0.2, 0.1, 0.05, 0.03]
  assert support(probs, temperature=1.0, top_p=0.6) == [0]
  # Square roots, normalised: 0.404, 0.230, ... hold 0.634.
  assert support(probs, temperature=2.0, top_p=0.6) == [0, 1]
  assert support(probs, temperature=0.25, top_p=0.99) == [0, 1]


def test_each_stage_of_truncation_sees_what_the_last_one_left():
  probs = [0.4, 0.3, 0.2, 0.06, 0.04]
  assert support(probs, temperature=1.0, top_p=0.55) == [0, 1]
  # Of the two largest, the first holds 0.57 of the mass.
  assert support(probs, temperature=1.0, top_p=0.55, top_k=2) == [0]
  # 0.2 is half of the likeliest at temperature 1, and a quarter at 1/2.
  assert support(probs, temperature=1.0, min_p=0.4) == [0, 1, 2]
  assert support(probs, temperature=0.5, min_p=0.4) == [0, 1]


def test_tokens_that_tie_with_the_last_one_kept_are_kept():
  probs = [0.3, 0.2, 0.2, 0.2, 0.1]
  assert support(probs, temperature=1.0, top_k=2) == [0, 1, 2, 3]
  assert support(probs, temperature=1.0, top_p=0.4) == [0, 1, 2, 3]
  assert support([0.25] * 4, temperature=1.0, top_k=1) == [0, 1, 2, 3]
  assert support([0.5, 1e-30, 0.5, 1e-30], temperature=1.0, top_k=2) == [0, 2]


def by_sorting(values_V, weights_V, target):
  order_V = np.argsort(-values_V, kind="stable")
  held_V = np.cumsum(weights_V[order_V])
  if held_V[-1] < target:
    return np.ones(len(values_V), bool)
  least = values_V[order_V[np.argmax(held_V >= target)]]
  return values_V >= least


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_largest_are_those_that_sorting_finds(dtype, x64):
  rng = np.random.default_rng(0)
  values_BQV = rng.normal(size=(6, 4, V)) * 10.0 ** rng.integers(-30, 30, V)
  values_BQV[1] = rng.integers(-2, 3, (4, V))  # ties
  values_BQV[2] = np.where(rng.random((4, V)) < 0.9, -np.inf, values_BQV[2])
  values_BQV[3] = np.where(rng.random((4, V)) < 0.5, -0.0, 0.0)
  values_BQV[4] = -np.inf
  values_BQV[5, :, ::2] = -0.0
  values_BQV = values_BQV.astype(dtype)
  # Small integers: sums are exact, whatever their order.
  weights_BQV = rng.integers(0, 4, values_BQV.shape).astype(dtype)
  for weights in (np.ones_like(weights_BQV), weights_BQV):
    for target in (1, 2, 17, V - 1, V, 4 * V):
      target_BQ = np.full((6, 1), target, dtype)
      marked_BQV = np.asarray(
        _largest(*map(jnp.asarray, (values_BQV, weights, target_BQ)))
      )
      for b in range(6):
        for q in range(4):
          want_V = by_sorting(values_BQV[b, q], weights[b, q], target)
          np.testing.assert_array_equal(marked_BQV[b, q], want_V)


_largest = jax.jit(filters._largest)


def test_drafts_are_told_the_text_so_far_and_how_long_it_will_be():
  case = make_case(4, "least-and-stops")
  _, _, state = case.arrays()
  seen = history.of_drafts(state, 3)
  n_B = np.array([len(text) for text in case.texts])
  np.testing.assert_array_equal(
    seen.n_generated_BQ, n_B[:, None] + np.arange(3)
  )
  recent_BQL = np.asarray(seen.recent_BQL)
  for b, text in enumerate(case.texts):
    known = [t for t in recent_BQL[b, 0] if t >= 0]
    assert known == text[-len(known) :] and len(known) == min(len(text), 8)
  # What stands before a deeper draft depends on the path to it.
  assert (recent_BQL[:, 1:] == history.NO_TOKEN).all()


def test_deeper_drafts_are_not_held_to_the_grammar_of_the_root():
  case = make_case(4, "least-and-stops")
  _, _, state = case.arrays()
  state = state.replace(grammar_B=jnp.full_like(state.grammar_B, 7))
  seen = history.of_drafts(state, 3)
  np.testing.assert_array_equal(seen.grammar_BQ[:, 0], 7)
  np.testing.assert_array_equal(seen.grammar_BQ[:, 1:], automata.FREE)
