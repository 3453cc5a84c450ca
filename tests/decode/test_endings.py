"""EOS and budget, exact wherever in an accepted block they fall."""

import jax
import numpy as np
import pytest
from decoding import (
  CHAIN,
  ROOT,
  WIDE,
  V,
  advance,
  counter_params,
  multi_token_model,
  random_params,
  reports,
  run,
  start,
  to_decode,
)

from mtpjax import decode
from mtpjax.decode.batch import Packer
from mtpjax.errors import UserError

MODEL = multi_token_model()
TREES = {"root": ROOT, "chain": CHAIN, "wide": WIDE}
RIGHT, WRONG = (0, 0, 0), (1, 1, 1)


def count_from(token, budget, length=1):
  """A prompt whose continuation is token + 1, token + 2, ..."""
  return decode.Request((7,) * (length - 1) + (token % V,), budget)


@pytest.mark.parametrize("tree", TREES)
def test_budgets_of_1_to_8_with_blocks_of_4(tree):
  params = counter_params(RIGHT)
  for budgets in ((1, 2, 3, 4), (5, 6, 7, 8)):
    asked = [count_from(b, b) for b in budgets]
    for b, result in zip(
      budgets, run(MODEL, params, TREES[tree], asked), strict=True
    ):
      assert result.ids == tuple((b + n) % V for n in range(1, b + 1))
      assert len(result.logprobs) == b
      assert result.finish_reason == "length"
      assert result.passes == (b if tree == "root" else 1 + -(-(b - 1) // 4))


@pytest.mark.parametrize("shifts", [RIGHT, WRONG], ids=["right", "wrong"])
@pytest.mark.parametrize("tree", TREES)
def test_eos_at_every_position_of_the_output(tree, shifts):
  # Wrong drafts are one token ahead, and so propose the EOS too early.
  params, eos = counter_params(shifts), 9
  for places in ((1, 2, 3, 4), (5, 6, 7, 8)):
    asked = [count_from(eos - n, 20) for n in places]
    for n, result in zip(
      places, run(MODEL, params, TREES[tree], asked, (eos,)), strict=True
    ):
      assert result.ids == tuple((eos - n + i) % V for i in range(1, n + 1))
      assert result.finish_reason == "eos"
      assert len(result.logprobs) == n


def test_the_first_of_several_eos_ids_ends_and_minus_1_is_none():
  params = counter_params(RIGHT)
  asked = [count_from(start, 15) for start in (0, 2, 4, 6)]
  results = run(MODEL, params, CHAIN, asked, (5, 3, 8))
  assert [r.ids for r in results] == [(1, 2, 3), (3,), (5,), (7, 8)]
  assert {r.finish_reason for r in results} == {"eos"}
  assert results[1].passes == 1  # the very first token
  never = run(MODEL, params, CHAIN, asked, ())
  assert {(len(r.ids), r.finish_reason) for r in never} == {(15, "length")}
  with pytest.raises(UserError, match="9 are more than the 8"):
    run(MODEL, params, CHAIN, asked, tuple(range(9)))


def test_eos_on_the_last_token_of_the_budget_is_eos_and_behind_it_is_not():
  params = counter_params(RIGHT)
  for budget in range(1, 9):
    asked = [count_from(5 - budget, budget), count_from(4 - budget, budget)]
    on, behind = run(MODEL, params, CHAIN, asked, (5,))
    assert (len(on.ids), on.finish_reason) == (budget, "eos")
    assert (len(behind.ids), behind.finish_reason) == (budget, "length")


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_eos_in_the_output_of_a_random_model(tree, temperature):
  params = to_decode(MODEL, random_params(MODEL, 11))
  asked = [
    decode.Request((i + 1,), 12, temperature=temperature, index=i)
    for i in range(4)
  ]
  known = run(MODEL, params, ROOT, asked)
  assert len({r.ids for r in known}) > 1
  for eos in range(V):
    for whole, result in zip(
      known, run(MODEL, params, TREES[tree], asked, (eos,)), strict=True
    ):
      cut = (*whole.ids, eos).index(eos) + 1
      assert result.ids == whole.ids[:cut]
      assert result.finish_reason == ("eos" if cut <= 12 else "length")


@pytest.mark.parametrize("length", [1, 2, 31, 32])
def test_prompts_of_one_token_and_of_exactly_a_bucket(length):
  params = to_decode(MODEL, random_params(MODEL, 11))
  rng = np.random.default_rng(length)
  # 32 new tokens fill that bucket too: the cache is used to its last row.
  asked = [
    decode.Request(
      tuple(rng.integers(0, V, length).tolist()), 32, temperature=0.8, index=i
    )
    for i in range(4)
  ]
  plain, chain, wide = (
    run(MODEL, params, tree, asked) for tree in (ROOT, CHAIN, WIDE)
  )
  assert [r.ids for r in plain] == [r.ids for r in chain]
  assert [r.ids for r in plain] == [r.ids for r in wide]
  for results in (plain, chain, wide):
    for result, first in zip(results, plain, strict=True):
      assert len(result.ids) == 32 and result.finish_reason == "length"
      np.testing.assert_allclose(result.logprobs, first.logprobs, atol=1e-4)


def test_rows_that_finished_stay_as_they_are():
  params = counter_params(RIGHT)
  asked = [
    count_from(0, 2), count_from(4, 30), count_from(0, 30), count_from(0, 1)
  ]  # fmt: skip
  finished = {}
  *_, last = every = list(
    reports(MODEL, params, CHAIN, asked, (5,), chunk_passes=1)
  )
  for report in every:
    for b, result in enumerate(report):
      if b in finished:
        assert result == finished[b]
      elif result.finish_reason != "running":
        finished[b] = result
  assert [len(r.ids) for r in last] == [2, 1, 5, 1]
  # In the state as well, but for buffers behind what counts.
  spec, tables, state = start(MODEL, params, CHAIN, asked, (5,))
  before = jax.device_get(state)
  after = jax.device_get(advance(spec, params, tables, state, 3))
  for b in (1, 3):
    for name in ("length_B", "finish_B", "n_passes_B", "n_proposed_B"):
      assert getattr(before, name)[b] == getattr(after, name)[b]
    n = before.length_B[b]
    for old, new in zip(before.cache, after.cache, strict=True):
      np.testing.assert_array_equal(
        old.keys_BKSH[b, :, :n], new.keys_BKSH[b, :, :n]
      )


@pytest.mark.parametrize(
  "request_", [
    decode.Request((), 4), decode.Request((1,), 0),
    decode.Request((1,), 4, temperature=-0.5),
    decode.Request((1,), 4, temperature=float("nan")),
    decode.Request((1,), 4, temperature=0.5), decode.Request((1, 99), 4),
    decode.Request((-1,), 4), decode.Request((1,), 4, seed=1 << 40),
  ]
)  # fmt: skip
def test_impossible_requests_are_refused_in_one_line(request_):
  spec = decode.Spec(multi_token_model(), decode.Tree.root())
  for requests in ([request_], [], [decode.Request((1,), 4), request_]):
    with pytest.raises(UserError) as error:
      Packer.of(spec, requests, ())
    assert "\n" not in str(error.value)
