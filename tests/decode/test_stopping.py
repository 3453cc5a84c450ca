"""Whatever ends a text, all that is reported ends at the same token."""

import logging
import pathlib

import jax
import numpy as np
import pytest
from decoding import (
  CHAIN,
  ROOT,
  V,
  advance,
  counter_params,
  multi_token_model,
  read,
  start,
)

from mtpjax import config as config_lib
from mtpjax import decode
from mtpjax.api.loaded import Loaded
from mtpjax.api.stream import Stream

MODEL = multi_token_model()
TREES = {"root": ROOT, "chain": CHAIN}
RIGHT, WRONG = (0, 0, 0), (1, 1, 1)
# One program per tree for all tests of ids.
STAGES = decode.Stages(is_sampled=True, penalises=True, bans=True, stops=True)


class Letters:
  """A tokenizer of V tokens: letters, pairs of them, and halves of one."""

  vocab_size = V
  ids = frozenset(range(V))
  bos_id = None
  fallback_ids = frozenset()
  pieces = (
    b"a", b"bc", b"d", b"\xc3", b"\xa9", b"e", b"fg", b"h", b"h", b" ",
    b"\xe2\x82\xac",
  )  # fmt: skip

  def __init__(self, eos_ids=()):
    self.eos_ids = eos_ids

  def decode(self, ids):
    kept = [self.pieces[i] for i in ids if i not in self.eos_ids]
    return b"".join(kept).decode("utf-8", "replace")


def counted(first, n):
  return tuple((first + i) % V for i in range(1, n + 1))


def tally(n, tree, is_right):
  """(passes, proposed, origins) of a counter's first n tokens."""
  if tree is ROOT:
    return n, 0, (0,) * n
  if not is_right:
    return n, 3 * (n - 1), (0,) * n
  passes = 1 + -(-(n - 1) // 4)
  return passes, 3 * (passes - 1), (0, *((1, 2, 3, 0) * n)[: n - 1])


def run(params, tree, asked, eos_ids=()):
  """Returns the results, and how often each text has each token."""
  spec, tables, state = start(
    MODEL, params, tree, asked, eos_ids, stages=STAGES
  )
  state = advance(spec, params, tables, state, 64)
  return read(state), np.asarray(state.counts_BV)


ENDINGS = ("eos", "stop", "length")


@pytest.mark.parametrize("shifts", [RIGHT, WRONG], ids=["right", "wrong"])
@pytest.mark.parametrize("reason", ENDINGS)
def test_everything_ends_at_the_same_token_wherever_it_is(reason, shifts):
  params, end = counter_params(shifts), 8
  for places in ((1, 2, 3, 4), (5, 6, 7, 8)):
    asked = [
      decode.Request(
        (7, (end - n) % V), n if reason == "length" else 20,
        frequency_penalty=1e-3,
        # The second begins too early, the last would come too late.
        stop_sequences=() if reason != "stop" else (
          ((end - 1, end) if n > 1 else (end,)), ((end - n) % V, end),
          (end, end + 1),
        ),
      )
      for n in places
    ]  # fmt: skip
    eos_ids = (end + 1, end) if reason == "eos" else ()
    plain, _ = run(params, ROOT, asked, eos_ids)
    for tree in (ROOT, CHAIN):
      results, counts_BV = run(params, tree, asked, eos_ids)
      for b, (n, result) in enumerate(zip(places, results, strict=True)):
        assert result.ids == counted(end - n, n)
        assert result.finish_reason == reason
        assert (result.passes, result.proposed, result.origins) == tally(
          n, tree, shifts == RIGHT
        )
        np.testing.assert_allclose(
          result.logprobs, plain[b].logprobs, rtol=0, atol=1e-5
        )
        assert len(result.logprobs) == n
        np.testing.assert_array_equal(
          counts_BV[b], np.bincount(result.ids, minlength=V)
        )


@pytest.mark.parametrize("tree", TREES)
def test_a_stop_sequence_must_begin_in_the_text(tree):
  params = counter_params()
  asked = [
    decode.Request((5, 6), 9, stop_sequences=((6, 7),)),
    decode.Request((5, 6), 9, stop_sequences=((5, 6, 7), (6,))),
    decode.Request((5, 6), 9, stop_sequences=((6, 7, 8, 9),)),
    decode.Request((5, 6), 9, stop_sequences=((7,),)),
  ]
  results, _ = run(params, TREES[tree], asked)
  assert [len(r.ids) for r in results] == [9, 9, 9, 1]
  assert [r.finish_reason for r in results] == ["length"] * 3 + ["stop"]


@pytest.mark.parametrize("tree", TREES)
def test_of_two_endings_the_first_counts_and_an_eos_above_all(tree):
  params = counter_params()
  both = dict(stop_sequences=((3, 4, 5), (5, 6)))
  asked = [
    decode.Request((1,), 9, **both),  # 2 3 4 5
    decode.Request((1,), 4, **both),  # with the last of the budget
    decode.Request((1,), 3, **both),  # too late
    decode.Request((3,), 9, **both),  # 4 5 6: the first begins in the prompt
  ]
  results, _ = run(params, TREES[tree], asked)
  assert [(len(r.ids), r.finish_reason) for r in results] == [
    (4, "stop"), (4, "stop"), (3, "length"), (3, "stop")
  ]  # fmt: skip
  results, _ = run(params, TREES[tree], asked, (5,))
  assert [(len(r.ids), r.finish_reason) for r in results] == [
    (4, "eos"), (4, "eos"), (3, "length"), (2, "eos")
  ]  # fmt: skip


def test_an_eos_that_is_only_drafted_ends_nothing():
  # Drafts say 1, which is the EOS and a stop sequence; the text is zeros.
  params = counter_params(WRONG, constant=0)
  asked = [
    decode.Request((4,), n, stop_sequences=((1,), (0, 1), (1, 1)))
    for n in (1, 5, 9, 13)
  ]
  results, _ = run(params, CHAIN, asked, (1,))
  for request, result in zip(asked, results, strict=True):
    n = request.max_new_tokens
    assert (result.ids, result.finish_reason) == ((0,) * n, "length")
    assert (result.passes, result.proposed, result.origins) == tally(
      n, CHAIN, is_right=False
    )


def with_minimum(request, eos_ids):
  """A counter that may not end yet takes the token with the next best logit."""
  text = []
  while len(text) < request.max_new_tokens:
    last = text[-1] if text else request.ids[-1]
    logits_V = np.zeros(V)
    logits_V[(last + 1) % V] = 12
    if len(text) < request.min_new_tokens:
      logits_V[list(eos_ids)] = -np.inf
      for sequence in request.stop_sequences:
        before = list(sequence[:-1])
        if text[len(text) - len(before) :] == before:
          logits_V[sequence[-1]] = -np.inf
    text.append(int(np.argmax(logits_V)))
    if text[-1] in eos_ids:
      return tuple(text), "eos"
    for sequence in request.stop_sequences:
      if tuple(text[-len(sequence) :]) == sequence:
        return tuple(text), "stop"
  return tuple(text), "length"


def test_before_the_minimum_nothing_ends_a_text():
  params = counter_params()
  seen = set()
  for least in range(0, 12):
    asked = [
      decode.Request(
        (first,),
        least + more,
        min_new_tokens=least,
        stop_sequences=((4, 5), (9,), (0, 1, 2)),
      )
      for first, more in ((0, 9), (2, 2), (5, 5), (10, 9))
    ]
    for eos_ids in ((), (7, 3)):
      for tree in (ROOT, CHAIN):
        results, _ = run(params, tree, asked, eos_ids)
        for request, result in zip(asked, results, strict=True):
          assert (result.ids, result.finish_reason) == with_minimum(
            request, eos_ids
          )
          # What ends a text comes behind the minimum.
          assert len(result.ids) >= least + (result.finish_reason != "length")
          seen.add(result.finish_reason)
  assert seen == {"eos", "stop", "length"}


def test_other_settings_of_requests_need_no_other_program(caplog):
  params = counter_params()

  def run_with(x):
    asked = [
      decode.Request(
        (b,) * (b + x), 9 + x, temperature=0.5 * x, seed=x, index=b,
        min_new_tokens=x + b, repetition_penalty=1 + x,
        frequency_penalty=0.5 * x, presence_penalty=-x / 4, top_k=0,
        bad_words=((x, x + 1),) * x, stop_sequences=((b + x,) * x,) * b,
      )
      for b in range(4)
    ]  # fmt: skip
    run(params, CHAIN, asked, tuple(range(x)))

  def compiled():
    return [r for r in caplog.records if r.getMessage().startswith("Compiling")]

  run_with(1)
  with jax.log_compiles(), caplog.at_level(logging.WARNING):
    for x in (2, 3, 4):
      run_with(x)
    assert not compiled(), compiled()
    jax.jit(lambda x: x * 43 + 17)(1.0)  # would it have been seen?
    assert compiled()


def loaded(params, eos_ids=()):
  model = Loaded(
    config_lib.Config(), MODEL, None, Letters(eos_ids), pathlib.Path(), 0, ""
  )
  model.__dict__["decode_params"] = params
  return model


def first_stop(ids, stop, least, eos_ids=()):
  """Token by token: (number of ids, text) where a stop ends it, or None."""
  decode_ids = Letters(eos_ids).decode
  for n in range(1, len(ids) + 1):
    text = decode_ids(ids[:n])
    if n <= least:
      continue
    # Only what this token completes.
    known = decode_ids(ids[: n - 1]).rstrip("\ufffd")
    ends = [
      (at + len(s), -len(s))
      for s in stop
      for at in range(len(text))
      if text.startswith(s, at) and at + len(s) > len(known)
    ]
    if ends:
      end, length = min(ends)
      return n, text[: end + length]
  return None


def generate(model, prompts, **settings):
  """Generations, and the pieces that were shown of each."""
  pieces = [[] for _ in prompts]
  generations = model.generate(
    prompts, on_text=lambda i, piece: pieces[i].append(piece),
    batch_size=4, **settings,
  )  # fmt: skip
  return generations, pieces


def check(generation, pieces, mode, whole, stop, least, eos_ids=()):
  """One counter with right drafts; `whole` is its text without the stop."""
  found = first_stop(whole, stop, least, eos_ids)
  n, text = found or (len(whole), Letters(eos_ids).decode(whole))
  tree = CHAIN if mode == "chain" else ROOT
  passes, proposed, origins = tally(n, tree, is_right=True)
  assert tuple(generation.ids) == whole[:n]
  assert generation.text == text
  assert len(generation.logprobs) == n
  assert (generation.passes, generation.proposed) == (passes, proposed)
  assert generation.accepted == sum(origin > 0 for origin in origins)
  assert (generation.finish_reason == "stop") == bool(found)
  # Never more than that, and nothing taken back.
  assert "".join(pieces) == text and all(pieces)
  return found is not None


@pytest.mark.parametrize("mode", ["next", "chain"])
def test_stop_strings_cut_at_each_token_of_a_block_whatever_the_chunk(mode):
  model = loaded(counter_params())
  rng = np.random.default_rng(0)
  n_stopped = 0
  for call in range(24):
    prompts, wholes = [], []
    for b in range(4):
      first = int(rng.integers(0, V))
      whole = counted(first, 20)
      text = Letters().decode(whole).strip("\ufffd")
      # Up to three strings of the text, from within one token or over many.
      stop = []
      for _ in range(rng.integers(1, 4)):
        at = int(rng.integers(0, 14))
        stop.append(text[at : at + int(rng.integers(1, 8))])
      prompts.append({
        "ids": [first], "max_new_tokens": 20, "stop": stop,
        # Never 0 for all of them, which would be another program.
        "min_new_tokens": int(rng.integers(0, 9)) if b else 1,
      })  # fmt: skip
      wholes.append(whole)
    chunk = (1, 2, 16)[call % 3]
    generations, pieces = generate(
      model, prompts, mode=mode, chunk_passes=chunk
    )
    for prompt, whole, generation, shown in zip(
      prompts, wholes, generations, pieces, strict=True
    ):
      n_stopped += check(
        generation, shown, mode, whole, prompt["stop"],
        prompt["min_new_tokens"],
      )  # fmt: skip
  assert n_stopped > 48


@pytest.mark.parametrize("stop, n, text", [
  (["dé"], 5, "abc"),  # the end of it is half a token
  (["é"], 5, "abcd"),
  (["é", "dée"], 5, "abcd"),  # overlapping: the first to be complete
  (["ée", "cdée", "e"], 6, "ab"),  # complete at once: the longest
  (["c"], 2, "ab"),  # within one token
  (["hh h"], 20, ""),  # never
  (["hh €a"], 12, "abcdéefg"),
  (["€"], 11, "abcdéefghh "),
])  # fmt: skip
def test_stop_strings_across_tokens_and_in_a_character(stop, n, text):
  model = loaded(counter_params())
  prompt = {
    "ids": [10], "max_new_tokens": 20, "stop": stop, "min_new_tokens": 1
  }  # fmt: skip
  for chunk in (1, 16):
    generations, pieces = generate(
      model, [prompt] * 4, mode="chain", chunk_passes=chunk
    )
    for generation, shown in zip(generations, pieces, strict=True):
      assert len(generation.ids) == n
      if n < 20:
        assert (generation.text, generation.finish_reason) == (text, "stop")
      check(generation, shown, "chain", counted(10, 20), stop, 1)


def test_a_stop_string_on_the_last_token_or_before_an_eos_is_a_stop():
  settings = dict(mode="chain", chunk_passes=16, stop=("de", "fg"))
  model = loaded(counter_params(), eos_ids=(3, 4, 7))
  prompts = [
    {"ids": [4], "max_new_tokens": 2, "min_new_tokens": 1},  # on the budget
    {"ids": [4], "max_new_tokens": 9},  # "fg", and behind it the EOS
    {"ids": [5], "max_new_tokens": 9},  # the very first token
    {"ids": [7], "max_new_tokens": 2},  # none
  ]
  generations, pieces = generate(model, prompts, **settings)
  assert [g.finish_reason for g in generations] == ["stop"] * 3 + ["length"]
  assert [g.text for g in generations] == ["e", "e", "", "h "]
  assert [len(g.ids) for g in generations] == [2, 2, 1, 2]
  for generation, shown in zip(generations, pieces, strict=True):
    assert "".join(shown) == generation.text


class Grown:
  """A result that has come so far."""

  def __init__(self, ids, finish_reason="running"):
    self.ids, self.finish_reason = ids, finish_reason


@pytest.mark.parametrize("seed", range(3))
def test_streams_show_the_same_however_the_ids_come(seed):
  rng = np.random.default_rng(seed)
  n_stopped = 0
  for _ in range(300):
    # Few tokens, so that strings recur; halves of characters in any order.
    letters = rng.choice(V, 4)
    ids = tuple(rng.choice(letters, rng.integers(1, 25)).tolist())
    text = Letters().decode(rng.choice(letters, 30)).replace("\ufffd", "")
    stop = [
      text[at : at + int(rng.integers(1, 5))] or "zz"
      for at in rng.integers(0, 8, rng.integers(1, 4))
    ]
    least = int(rng.choice([0, 1, 4]))
    found = first_stop(ids, stop, least)
    n, want = found or (len(ids), Letters().decode(ids))
    n_stopped += found is not None
    shown, sizes = [], []
    stream = Stream(
      Letters(), stop, lambda _, piece: shown.append(piece), 0, least  # noqa: B023
    )  # fmt: skip
    at, cut = 0, None
    while cut is None and at < len(ids):
      at = min(at + int(rng.integers(1, 7)), len(ids))
      sizes.append(at)
      cut = stream.find_stop(ids[:at])
      if cut is not None:
        stream.push(Grown(ids[:cut], "stop"))
      else:
        stream.push(Grown(ids[:at], "running" if at < len(ids) else "length"))
    assert cut == (n if found else None), (ids, stop, least, sizes)
    assert "".join(shown) == want == stream.text(ids[:n]), (ids, stop, sizes)
  assert n_stopped > 60
