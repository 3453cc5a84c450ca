"""Every combination of settings: with drafts the same text as without.

300 requests of up to 40 tokens, whose settings make all pairs of values of two
settings occur. Noise belongs to request and position, so that the texts must
be equal, id by id, whatever drafts; and the slow pipeline says which they are.
"""

import dataclasses
import functools
import itertools

import jax
import numpy as np
import pytest
import slow_pipeline as slow
from decoding import (
  Plan,
  V,
  multi_token_model,
  random_params,
  reference_logits,
  to_decode,
)

from mtpjax import decode
from mtpjax.decode import drafters

TIE = 1e-5  # two scores so close are a matter of rounding
GROUPS, GROUP = 10, 30  # a group has a model of its own
RARE = (8, 9, 10)  # ids that end texts, unlikely so that texts are long
BIAS = 16
DRAFTS = 4  # of lookup; the heads reach 3
ALL_STAGES = decode.Stages(*(True,) * len(dataclasses.fields(decode.Stages)))
GRAMMARS = slow.compile_grammars(V)

# Levels of each setting; those of one name are drawn anew per request.
LEVELS = {
  "temperature": (0.0, 0.7, 1.3),
  "top_k": (0, 3),
  "top_p": (1.0, 0.8),
  "min_p": (0.0, 0.1),
  "repetition_penalty": (1.0, 1.3),
  "frequency_penalty": (0.0, 0.4),
  "presence_penalty": (0.0, 0.5),
  "logit_bias": ("none", "some"),
  "bad_words": ("none", "some"),
  "min_new_tokens": (0, 5),
  "stop_sequences": ("none", "some"),
  "grammar": ("none", "some"),
}


def is_refused(row):
  """A grammar with bad words or a least number of tokens is refused."""
  return row["grammar"] == "some" and (
    row["bad_words"] == "some" or row["min_new_tokens"] > 0
  )


def pairs(row):
  return set(itertools.combinations(row.items(), 2))


def all_pairs():
  every = {
    ((one, a), (two, b))
    for one, two in itertools.combinations(LEVELS, 2)
    for a in LEVELS[one]
    for b in LEVELS[two]
  }
  base = {name: levels[0] for name, levels in LEVELS.items()}
  return {pair for pair in every if not is_refused(base | dict(pair))}


def draw_row(rng):
  while True:
    row = {name: x[rng.integers(len(x))] for name, x in LEVELS.items()}
    if not is_refused(row):
      return row


def covering_rows(rng):
  """Rows that have all pairs; each the best of 50 at covering what is left."""
  left, rows = all_pairs(), []
  while left:
    best = max(
      (draw_row(rng) for _ in range(50)), key=lambda r: len(pairs(r) & left)
    )
    left -= pairs(best)
    rows.append(best)
  return rows


def request_of(row, rng, seed):
  """Settings of a row, with what it leaves open drawn at random."""

  def ids(*shape):
    return rng.integers(0, V, shape).tolist()

  some = {
    "logit_bias": tuple(
      (int(i), float(rng.normal(scale=2))) for i in rng.choice(V, 4, False)
    ),
    "bad_words": ((ids(1)[0],), (ids(1)[0],), tuple(ids(2))),
    "stop_sequences": ((RARE[1],), tuple(ids(2))),
    "grammar": GRAMMARS[seed % 2],
  }
  chosen = {
    name: some[name] if value == "some" else value
    for name, value in row.items()
    if value != "none"
  }
  budget = 40 if rng.random() < 0.85 else int(rng.integers(5, 41))
  return decode.Request(
    tuple(ids(rng.integers(1, 21))), budget, seed=seed, index=seed % 7, **chosen
  )


@functools.cache
def groups():
  """[requests of a group], each with a covering array and random rows."""
  rng = np.random.default_rng(0)
  made = []
  for group in range(GROUPS):
    rows = covering_rows(rng)
    assert len(rows) <= GROUP
    rows += [draw_row(rng) for _ in range(GROUP - len(rows))]
    rng.shuffle(rows)
    made.append(
      [request_of(r, rng, group * GROUP + i) for i, r in enumerate(rows)]
    )
  return made


def random_tree(rng):
  """Random rank paths, gaps among the ranks; each parent is a node."""
  paths = [()]
  while len(paths) < rng.integers(7, 11):
    above = paths[rng.integers(len(paths))]
    path = (*above, int(rng.integers(4)))
    if len(path) <= 3 and path not in paths:
      paths.append(path)
  return decode.Tree.from_rank_paths(paths[1:])


@functools.cache
def programs():
  """Plain decoding, six random trees, lookup, merged; all can take turns."""
  rng = np.random.default_rng(5)
  trees = [random_tree(rng) for _ in range(6)]
  assert max(tree.max_depth for tree in trees) == 3
  assert any(tree.max_depth == 3 and tree.ranks[1] for tree in trees)
  model = multi_token_model()
  heads = drafters.drafting_heads(model, 3)
  lookup = drafters.Lookup()
  programs = [
    (decode.Tree.root(), heads),
    *((tree, heads) for tree in trees),
    (decode.Tree.chain(DRAFTS), lookup),
    (decode.Tree.chain(DRAFTS), drafters.Merged(heads, lookup, least=1)),
  ]
  return [
    decode.Spec(
      model, tree, ALL_STAGES, drafters.Keeping(drafter, (heads,)),
      room=DRAFTS + 1,
    )
    for tree, drafter in programs
  ]  # fmt: skip


LOOKUP, MERGED = 7, 8


@functools.cache
def params_of(group):
  """(stacked, decoding) parameters of a group's model."""
  params = random_params(multi_token_model(), 300 + group)
  # The first feature is the same behind all tokens and nothing writes to it:
  # it takes the place of a bias.
  lm, layers = params["lm"], params["lm"]["layers"]
  lm["embedding"][:, 0] = 1
  layers["attention"]["out"]["kernel"][..., 0] = 0
  layers["mlp"]["down"]["kernel"][..., 0] = 0
  lm["unembedding"][:, RARE] *= 0.3
  lm["unembedding"][0] = [-BIAS * (v in RARE) for v in range(V)]
  return params, to_decode(multi_token_model(), params)


def generated(specs, group, requests, batch, chunk_passes, governor):
  latest = {}
  with jax.default_matmul_precision("highest"):
    for results in decode.generate(
      specs, params_of(group)[1], requests, slow.EOS_IDS, batch, chunk_passes,
      chooser=governor,
    ):  # fmt: skip
      latest |= results
  return [latest[n] for n in range(len(requests))]


def take_turns(group, levels, requests=None, batch=4, chunk_passes=64):
  """Returns the last result of each request, and the plan that was followed.

  Args:
    group: whose model and, if not given, whose requests.
    levels: programs that take turns, each for one chunk.
    requests: instead of those of the group.
    batch: rows.
    chunk_passes: passes between reports.
  """
  requests = groups()[group] if requests is None else requests
  # Plain decoding always runs the prompts. No program that isn't used: all
  # would be compiled.
  used = list(dict.fromkeys([0, *levels]))
  specs = [programs()[level] for level in used]
  plan = Plan(*(used.index(level) for level in levels))
  return generated(specs, group, requests, batch, chunk_passes, plan), plan


def ask(group, level, *args, **kwargs):
  return take_turns(group, [level], *args, **kwargs)[0]


@functools.cache
def plain(group):
  return ask(group, 0)


def inputs(group, requests, results):
  """Logits and noise of finished texts, from one pass without a cache."""
  texts = [r.ids + x.ids for r, x in zip(requests, results, strict=True)]
  return reference_logits(
    multi_token_model(), params_of(group)[0], requests, texts
  )


def margin(group, request, text):
  """Of the two best scores for the token behind a generated text."""
  logits_1TV, noise_1TV = reference_logits(
    multi_token_model(), params_of(group)[0], [request], [request.ids + text]
  )
  at = len(request.ids) + len(text) - 1
  best_V = np.sort(
    slow.scores(
      request, slow.EOS_IDS, logits_1TV[0, at], noise_1TV[0, at], text
    )
  )
  return best_V[-1] - best_V[-2]


def compare(group, requests, expected, results):
  """Fails where texts differ but for a tie; returns how many ties there are."""
  ties = 0
  for request, one, two in zip(requests, expected, results, strict=True):
    if one.ids == two.ids:
      assert one.finish_reason == two.finish_reason != "running"
      np.testing.assert_allclose(one.logprobs, two.logprobs, rtol=0, atol=1e-4)
      continue
    n = next(
      n for n, (a, b) in enumerate(zip(one.ids, two.ids, strict=False))
      if a != b
    )  # fmt: skip
    at = margin(group, request, one.ids[:n])
    print(f"differs at token {n} by a margin of {at:.2e}: {request}")
    assert at < TIE
    ties += 1
  return ties


def test_requests_have_every_pair_of_values_of_two_settings():
  def level(request, name):
    value = getattr(request, name)
    if LEVELS[name][0] != "none":
      return value
    return "some" if value else "none"

  # 55 pairs of settings with 4 pairs of values, 11 with 6; 2 are refused.
  assert len(all_pairs()) == 55 * 4 + 11 * 6 - 2
  for requests in groups():
    there = set()
    for request in requests:
      there |= pairs({name: level(request, name) for name in LEVELS})
    assert there == all_pairs()
  everything = [r for requests in groups() for r in requests]
  assert len({r.seed for r in everything}) == len(everything) == 300


def test_plain_decoding_is_the_slow_pipeline_token_by_token():
  ties, tokens, reasons, teeth = 0, 0, set(), dict.fromkeys(LEVELS, 0)
  for group, requests in enumerate(groups()):
    results = plain(group)
    logits_BTV, noise_BTV = inputs(group, requests, results)
    for b, (request, result) in enumerate(zip(requests, results, strict=True)):
      for n, token in enumerate(result.ids):
        text, at = result.ids[:n], len(request.ids) - 1 + n
        args = slow.EOS_IDS, logits_BTV[b, at], noise_BTV[b, at], text
        scores_V = slow.scores(request, *args)
        if np.argmax(scores_V) != token:
          runner_up, best = np.sort(scores_V)[-2:]
          print(f"token {n} by a margin of {best - runner_up:.2e}: {request}")
          assert best - runner_up < TIE
          ties += 1
        if n:
          assert slow.ending(request, slow.EOS_IDS, text) == "running"
        logprob = np.log(slow.softmax(logits_BTV[b, at])[token])
        assert abs(result.logprobs[n] - logprob) < 1e-4
        for name in LEVELS if n < 10 else ():
          other_V = slow.scores(slow.without(request, name), *args)
          teeth[name] += np.argmax(other_V) != token
      reason = slow.ending(request, slow.EOS_IDS, result.ids)
      assert result.finish_reason == reason
      assert result.passes == len(result.ids) and not result.proposed
      reasons.add(reason)
      tokens += len(result.ids)
  print(f"{tokens} tokens, {ties} ties; chosen otherwise without: {teeth}")
  assert ties <= 2
  assert reasons == {"eos", "stop", "length"}
  # Each setting decided some tokens, so that leaving it out would be seen.
  assert min(teeth.values()) > 0


@pytest.mark.parametrize("level", range(1, MERGED + 1))
def test_trees_and_lookup_say_what_plain_decoding_says(level):
  ties = tokens = passes = 0
  for group, requests in enumerate(groups()):
    results = ask(group, level)
    ties += compare(group, requests, plain(group), results)
    tokens += sum(len(result.ids) for result in results)
    passes += sum(result.passes for result in results)
  print(f"{tokens} tokens, {tokens / passes:.3f} per pass, {ties} ties")
  assert ties <= 1
  assert tokens > 1.08 * passes


def test_neither_order_nor_company_nor_chunks_matter():
  group, level = 3, 2
  requests, expected = groups()[group], plain(group)
  ties = 0
  for chunk_passes in (1, 5):
    for one in (0, level):
      results = ask(group, one, chunk_passes=chunk_passes)
      ties += compare(group, requests, expected, results)
  rng = np.random.default_rng(1)
  constrained = next(i for i, r in enumerate(requests) if r.grammar is not None)
  for size in (30, 30, 11, 6):
    order = rng.permutation(len(requests))[:size].tolist()
    # Without any grammar it would be another program; that's shown elsewhere.
    order = list(dict.fromkeys([*order, constrained]))
    asked, wanted = zip(
      *((requests[i], expected[i]) for i in order), strict=True
    )
    for one in (level, LOOKUP):
      results = ask(group, one, asked, chunk_passes=7)
      ties += compare(group, asked, wanted, results)
  assert ties <= 1


@pytest.mark.parametrize("batch", [1, 3])
def test_the_number_of_rows_does_not_matter(batch):
  group, level = 4, 3
  requests = groups()[group]
  results = generated([programs()[level]], group, requests, batch, 9, None)
  assert compare(group, requests, plain(group), results) <= 1


def test_a_longer_neighbour_does_not_matter():
  """Prompts padded to 64, room for 128 tokens, more and longer sequences."""
  group, level = 5, 4
  rng = np.random.default_rng(2)
  words = tuple(tuple(rng.integers(0, V, 5).tolist()) for _ in range(5))
  long = decode.Request(
    tuple(rng.integers(0, V, 50).tolist()), 70, temperature=0.7,
    bad_words=words, stop_sequences=words,
  )  # fmt: skip
  requests = groups()[group]
  asked = [*requests[:7], long, *requests[7:]]
  results = generated([programs()[level]], group, asked, 4, 64, None)
  del results[7]
  assert compare(group, requests, plain(group), results) <= 1


def test_programs_that_take_turns_say_what_either_says():
  ties = 0
  for group, levels, chunk_passes in [
    (6, (1, 5), 1), (7, (6, 2), 2), (8, (0, LOOKUP, 3, MERGED), 1),
    (9, (0, 1), 3),
  ]:  # fmt: skip
    results, plan = take_turns(group, levels, chunk_passes=chunk_passes)
    ties += compare(group, groups()[group], plain(group), results)
    assert len(set(plan.chosen)) == len(levels)
    assert plan.ticks == len(plan.chosen)
    # What the governor sees is all but the first token of each request.
    tokens, passes = np.sum(plan.observed, axis=0)
    assert tokens == sum(len(r.ids) - 1 for r in results)
    assert passes == sum(r.passes - 1 for r in results)
  assert ties <= 1


def test_stages_that_no_request_needs_change_nothing():
  """A program made for the requests at hand, and alone."""
  group = 1
  asked = groups()[group]
  for name in set(LEVELS) - {"temperature", "top_k", "logit_bias"}:
    asked = [slow.without(request, name) for request in asked]
  stages = decode.Stages.of(asked)
  assert stages == decode.Stages(is_sampled=True, biases=True, truncates=True)
  # With one grammar in the batch it's the program of all stages.
  constrained = dataclasses.replace(asked[0], grammar=GRAMMARS[0])
  expected = ask(group, 0, [*asked, constrained])[:-1]
  spec = decode.Spec(multi_token_model(), programs()[1].tree, stages)
  results = generated([spec], group, asked, 4, 64, None)
  assert compare(group, asked, expected, results) <= 1
