"""Tokens per pass, counted by hand."""

import types

import pytest
from decoding import CHAIN, counter_params, multi_token_model, run

from mtpjax import api, decode, evals

MODEL = multi_token_model()


def texts(budget, eos_ids=(), **asked):
  """One prompt of 0, and 1, 2, 3, ... after it, all of three drafts right."""
  request = decode.Request((0,), budget, **asked)
  return run(MODEL, counter_params(), CHAIN, [request], eos_ids)


@pytest.mark.parametrize(
  "budget, eos_ids, stops, n_ids, passes, per_pass",
  [
    # 1 | 2 3 4 5 | 6 7 8 9
    (9, (), (), 9, 3, 8 / 2),
    # 1 | 2 3 4 5 | 6, and the budget cuts 7 8 9
    (6, (), (), 6, 3, 5 / 2),
    # 1 | 2 3 4 5 | 6 7, which ends the text, and 8 9 are cut
    (9, (7,), (), 7, 3, 6 / 2),
    # 1 | 2 3, which ends the text
    (9, (), ((2, 3),), 3, 2, 2 / 1),
    # The prompt's own pass is all there is: nothing is known of drafts.
    (1, (), (), 1, 1, None),
    (9, (1,), (), 1, 1, None),
  ],
)
def test_it_is_what_is_left_over_the_passes_after_the_prompts(
  budget, eos_ids, stops, n_ids, passes, per_pass
):
  [result] = texts(budget, eos_ids, stop_sequences=stops)
  assert (len(result.ids), result.passes) == (n_ids, passes)
  assert decode.tokens_per_pass([result]) == per_pass
  # Everyone who says it says the same.
  assert evals.count_acceptance(CHAIN, [result]).tokens_per_pass == per_pass
  generation = api.Generation(
    list(result.ids), "", "length", [], result.passes, 0, 0
  )
  assert generation.tokens_per_pass == per_pass
  said = api.speed([generation], None)
  assert (per_pass is None) == ("per pass" not in said)
  if per_pass is not None:
    assert f", {per_pass:.2f} tokens per pass" in said


def test_texts_are_counted_together_not_averaged():
  one = types.SimpleNamespace(ids=(0,) * 9, passes=3)  # 8 in 2
  other = types.SimpleNamespace(ids=(0,) * 5, passes=5)  # 4 in 4
  short = types.SimpleNamespace(ids=(0,), passes=1)
  assert decode.committed([one, other, short]) == (12, 6)
  assert decode.tokens_per_pass([one, other, short]) == 2
  assert decode.tokens_per_pass([]) is None
