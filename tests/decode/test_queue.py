"""More requests than rows, and programs that take turns on one state."""

import dataclasses
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decoding import (
  CHAIN,
  ROOT,
  V,
  counter_params,
  multi_token_model,
  random_params,
  random_requests,
  run,
  spec_of,
  start,
  to_decode,
)

from mtpjax import budget, decode
from mtpjax import config as config_lib
from mtpjax.budget import Governor, Level
from mtpjax.decode import batch as batches
from mtpjax.decode import drafters
from mtpjax.evals.speed.unseen import Unseen

MODEL = multi_token_model()
ROWS = 3
RIGHT, WRONG = (0, 0, 0), (1, 1, 1)


def queue(params, asked, eos_ids=(), chunk_passes=4, specs=None, governor=None):
  """Yields every report of ROWS rows."""
  with jax.default_matmul_precision("highest"):
    yield from decode.generate(
      specs or [spec_of(MODEL, CHAIN)], params, asked, eos_ids, ROWS,
      chunk_passes, chooser=governor,
    )  # fmt: skip


def last_of(reports):
  """The last result of each request, in order; each is over exactly once."""
  latest, over = {}, set()
  for report in reports:
    assert not over & set(report)  # a row that is free reports nothing
    for number, result in report.items():
      if number in latest:
        n = len(latest[number].ids)
        assert result.ids[:n] == latest[number].ids
        assert result.passes >= latest[number].passes
      latest[number] = result
      if result.finish_reason != "running":
        over.add(number)
  assert over == set(latest)
  return [latest[number] for number in sorted(latest)]


def same(one, two):
  logprobs = one.logprobs, two.logprobs
  assert dataclasses.replace(one, logprobs=()) == dataclasses.replace(
    two, logprobs=()
  )
  np.testing.assert_allclose(*logprobs, rtol=0, atol=1e-4)


def fifty(seed):
  """Greedy and sampled, prompts of 1 to 32 tokens, budgets of 1 to 32."""
  rng = np.random.default_rng(seed)
  lengths = rng.integers(1, 33, 50)
  budgets = rng.integers(1, 33, 50)
  lengths[:6], budgets[:6] = (1, 1, 31, 32, 32, 31), (1, 32, 1, 32, 1, 32)
  return [
    decode.Request(
      tuple(rng.integers(0, V, lengths[i]).tolist()),
      int(budgets[i]),
      temperature=float(rng.choice([0.0, 0.8])),
      seed=int(rng.integers(0, 3)),
      index=i,
    )
    for i in range(50)
  ]


def test_fifty_requests_on_three_rows_each_say_what_they_say_alone():
  params = to_decode(MODEL, random_params(MODEL, 51))
  asked, eos_ids = fifty(0), (3,)
  together = last_of(queue(params, asked, eos_ids))
  assert len(together) == 50
  assert {r.finish_reason for r in together} == {"eos", "length"}
  for number in range(0, 50, 4):
    [alone] = last_of(queue(params, asked[number : number + 1], eos_ids))
    same(together[number], alone)
  # In another order, and with other looks between.
  order = np.random.default_rng(1).permutation(50)
  others = last_of(
    queue(params, [asked[i] for i in order], eos_ids, chunk_passes=1)
  )
  for i, result in zip(order, others, strict=True):
    same(together[i], result)


def test_rows_that_were_used_before_keep_nothing_of_it():
  # Zeros from an empty buffer, and the token that every text is made of.
  for shifts in (RIGHT, WRONG):
    params = counter_params(shifts, constant=0)
    asked = fifty(2)
    asked = [dataclasses.replace(r, temperature=0.0) for r in asked]
    for request, result in zip(
      asked, last_of(queue(params, asked)), strict=True
    ):
      n = request.max_new_tokens
      assert (result.ids, result.finish_reason) == ((0,) * n, "length")
      assert result.passes == (1 + -(-(n - 1) // 4) if shifts == RIGHT else n)
      assert result.accepted == (n - 1 - (n - 1) // 4 if shifts == RIGHT else 0)


def test_a_row_is_filled_again_while_the_slowest_still_runs(monkeypatch):
  params = counter_params(WRONG)  # a token per pass
  budgets = [32] + [3] * 30
  asked = [decode.Request((b % V,), n) for b, n in enumerate(budgets)]
  chunks = []
  run_chunk = batches.run_chunk

  def counted(*args):
    chunks.append(1)
    return run_chunk(*args)

  monkeypatch.setattr(batches, "run_chunk", counted)
  at_once, finished_with_the_first = [], 0
  for report in queue(params, asked, chunk_passes=1):
    at_once.append(len(report))
    if report.get(0) and report[0].finish_reason == "running":
      finished_with_the_first += sum(
        r.finish_reason != "running" for r in report.values()
      )
  # 2 passes each behind the prompt's own, two at a time; 31 for the first.
  assert len(chunks) == 31
  assert finished_with_the_first == 30
  assert max(at_once) == ROWS


def test_every_row_may_finish_at_another_step():
  params = counter_params()
  asked = [decode.Request((i % V,), 1 + (7 * i) % 32) for i in range(32)]
  assert len({r.max_new_tokens for r in asked}) == 32
  for request, result in zip(asked, last_of(queue(params, asked)), strict=True):
    n = request.max_new_tokens
    assert result.ids == tuple(
      (request.ids[0] + j) % V for j in range(1, n + 1)
    )
    assert result.passes == 1 + -(-(n - 1) // 4)


def test_other_requests_of_the_same_sizes_compile_nothing(caplog):
  params = to_decode(MODEL, random_params(MODEL, 52))
  last_of(queue(params, fifty(3), (3,)))

  def compiled():
    return [r for r in caplog.records if r.getMessage().startswith("Compiling")]

  with jax.log_compiles(), caplog.at_level(logging.WARNING):
    for seed in (4, 5):
      last_of(queue(params, fifty(seed), (seed,), chunk_passes=seed))
    assert not compiled(), compiled()


LEVELS = (Level(ROOT, 1.0, 0.010), Level(CHAIN, 3.4, 0.020))


def level_specs(levels=LEVELS):
  stages = decode.Stages(is_sampled=True)
  return budget.programs(MODEL, config_lib.Decode(), stages, levels)


class Scripted:
  """A governor that reads its levels from a list, over and over."""

  def __init__(self, script):
    self.script, self.used, self.seen = script, [], []

  def choose(self, kinds):
    self.used.append(self.script[len(self.used) % len(self.script)])
    return self.used[-1]

  def observe(self, kind, level, tokens, passes):
    self.seen.append((kind, level, tokens, passes))

  def tick(self):
    pass


def growth(params, asked, script):
  """Returns [(level, {number: (tokens before, tokens added)})] per chunk."""
  governor, before, chunks = Scripted(script), {}, []
  for report in queue(params, asked, (), 1, level_specs(), governor):
    grown = {
      number: (len(before[number].ids), len(r.ids) - len(before[number].ids))
      for number, r in report.items()
      if number in before
    }
    if len(governor.used) > len(chunks):
      chunks.append((governor.used[-1], grown))
    before |= report
  return chunks, before


def test_a_counter_is_drafted_right_whatever_ran_before():
  params = counter_params()
  asked = [
    decode.Request((i,) * (i + 1), 32, kind="ab"[i % 2]) for i in range(3)
  ]
  for script in ([0, 1], [0, 0, 0, 1], [1, 1, 0, 1]):
    chunks, results = growth(params, asked, script)
    for level, grown in chunks:
      for before, added in grown.values():
        assert added == min(4 if level else 1, 32 - before)
    for i, request in enumerate(asked):
      assert results[i].ids == tuple((i + n) % V for n in range(1, 33))
      assert results[i].proposed == 3 * sum(
        level for level, grown in chunks if grown[i][1]
      )
      assert request.ids[-1] == i


def test_drafts_behind_a_switch_are_those_of_never_having_switched():
  params = to_decode(MODEL, random_params(MODEL, 53))
  rng = np.random.default_rng(0)
  asked = [
    decode.Request(tuple(rng.integers(0, V, n).tolist()), 32)
    for n in (1, 9, 17)
  ]
  never, whole = growth(params, asked, [1])
  gained = 0
  for script in ([0, 1], [0, 0, 0, 1], [1, 0, 0, 1, 1]):
    chunks, results = growth(params, asked, script)
    assert [results[i].ids for i in range(3)] == [
      whole[i].ids for i in range(3)
    ]
    for i in range(3):
      behind = {
        grown[i]
        for (earlier, _), (level, grown) in zip(
          chunks, chunks[1:], strict=False
        )
        if level and not earlier and grown.get(i, (99, 0))[0] < 14
      }
      for before, added in sorted(behind)[:4]:
        # A prompt that holds the text so far, but for the token that is next.
        text = asked[i].ids + whole[i].ids[: before - 1]
        fresh, _ = growth(params, [decode.Request(text, 8)] * 3, [1])
        assert fresh[0][1][0] == (1, added)
        gained += added - 1
  assert gained >= 3 and len(never) < 31


def test_the_governor_hears_what_every_row_did():
  params = counter_params()
  asked = [
    decode.Request((i,), n, kind=kind)
    for i, (n, kind) in enumerate([(32, "a"), (6, "b"), (9, "a"), (3, "b")])
  ]
  governor = Scripted([1, 0])
  last = last_of(queue(params, asked, (), 2, level_specs(), governor))
  for kind in "ab":
    mine = [r for a, r in zip(asked, last, strict=True) if a.kind == kind]
    seen = [entry for entry in governor.seen if entry[0] == kind]
    # But for the prompt's own pass and the token that it brings.
    assert sum(s[2] for s in seen) == sum(len(r.ids) - 1 for r in mine)
    assert sum(s[3] for s in seen) == sum(r.passes - 1 for r in mine)


class Watched(Governor):
  """The real one, and what it chose."""

  def __init__(self, levels):
    super().__init__(levels)
    self.used = []

  def choose(self, kinds):
    self.used.append(super().choose(kinds))
    return self.used[-1]


@pytest.mark.parametrize("shifts", [RIGHT, WRONG], ids=["right", "wrong"])
def test_speculation_that_loses_is_switched_off_and_else_stays(shifts):
  governor = Watched(LEVELS)
  asked = [decode.Request((i % V,), 32, kind="any") for i in range(12)]
  last = last_of(
    queue(counter_params(shifts), asked, (), 4, level_specs(), governor)
  )
  for request, result in zip(asked, last, strict=True):
    first = request.ids[0]
    assert result.ids == tuple((first + n) % V for n in range(1, 33))
  if shifts == RIGHT:
    assert set(governor.used) == {1}
    assert {r.passes for r in last} == {9}
  else:
    assert governor.used[0] == 1 and 0 in governor.used[:4]
    assert np.mean(governor.used) < 0.3  # tried again now and then
    assert sum(r.accepted for r in last) == 0


HEADS = drafters.drafting_heads(MODEL, 3)
IDLE = Unseen(HEADS, 3)


def chunk_program(drafter, params, asked):
  spec, tables, state = start(MODEL, params, ROOT, asked, drafter=drafter)
  return batches.run_chunk.lower(
    spec, params, tables, state, jnp.int32(1)
  ).compile()


def test_idle_heads_run_and_nobody_looks_at_them():
  params = to_decode(MODEL, random_params(MODEL, 54))
  asked = random_requests(5, 0.8)
  plain = run(MODEL, params, ROOT, asked, (3,))
  idle = run(MODEL, params, ROOT, asked, (3,), drafter=IDLE)
  assert idle == plain
  poisoned = params | {
    "heads": jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), params["heads"])
  }
  assert run(MODEL, poisoned, ROOT, asked, (3,), drafter=IDLE) == plain
  # They are in the program; in one that keeps their caches, and has no drafts
  # in its tree, they are not.
  flops = {
    name: chunk_program(drafter, params, asked).cost_analysis()["flops"]
    for name, drafter in {"heads": HEADS, "idle": IDLE}.items()
  }
  c = MODEL.config
  products = MODEL.heads.chain_length * (
    2 * c.d_model * c.n_attention_heads * c.d_head  # query, out
    + 2 * c.d_model * c.n_kv_heads * c.d_head  # keys and values, to be cached
    + 3 * c.d_model * c.d_ff
    + c.d_model * c.vocab_size
  )
  assert flops["idle"] - flops["heads"] > 2 * len(asked) * products
