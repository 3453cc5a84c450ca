"""What is measured side by side: everything but the clock."""

import types

import jax
import numpy as np
import pytest
from tiny import multi_token_model

from mtpjax.config import Heads
from mtpjax.decode import Result, Spec, Stages, Tree, decode_params, verifiers
from mtpjax.decode.batch import Packer, read_traces
from mtpjax.evals import class_requests, measure_decoding
from mtpjax.evals.speed import decoding as decode_speed
from mtpjax.evals.speed.trial import Trial

MODEL = multi_token_model(
  heads_config=Heads(offsets=(1, 2, 3), matched=False), vocab_size=24
)
NEW = 20
BRANCHES = Tree.from_branching((2, 2))
# Hot enough for drafts to be accepted: target and draft see the same noise.
REQUESTS = class_requests(
  {"b": [[1, 2, 3], [4], [5, 6]], "a": [[7, 8], [9]]}, NEW, frozenset(), 8.0
)


@pytest.fixture(scope="module")
def params():
  return decode_params(MODEL, MODEL.init(jax.random.key(0)))


@pytest.fixture(scope="module")
def specs():
  stages = Stages.of(REQUESTS)
  return {
    "next": Spec(MODEL, Tree.root(), stages),
    "tree": Spec(MODEL, BRANCHES, stages),
    "drawn": Spec(MODEL, Tree.chain(2), stages, verifier=verifiers.Rejection()),
  }


@pytest.fixture(scope="module")
def speeds(params, specs):
  rounds = []
  found = measure_decoding(
    params, REQUESTS, specs, 2, 1, False, lambda: rounds.append(0)
  )
  assert len(rounds) == 2 * len(specs)  # the first of each compiles
  return {(speed.kind, speed.mode): speed for speed in found}


def test_there_is_a_row_per_class_and_mode(speeds, specs):
  assert list(speeds) == [(k, m) for k in "ba" for m in specs]
  for (kind, mode), speed in speeds.items():
    row = speed.to_dict()
    assert (row["class"], row["mode"]) == (kind, mode)
    assert not {"acceptance", "details", "kind"} & set(row)
    assert not any(isinstance(v, tuple | dict) for v in row.values())
    assert 0 < speed.rows_running <= 1 and speed.pass_secs > 0
    assert (speed.speed_over_first == 1) or mode != "next"


def test_counts_of_all_modes_fit_together(speeds):
  for (kind, mode), speed in speeds.items():
    counts = speed.acceptance
    rows = {"a": 2, "b": 4}[kind]  # the third request of b has company
    assert counts.tokens == rows * NEW
    cut = counts.passes + counts.accepted - counts.tokens
    assert 0 <= cut <= rows
    assert counts.proposed >= counts.accepted
    if mode == "next":
      assert (counts.proposed, counts.tokens_per_pass) == (0, 1)
      assert counts.acceptance_by_offset == ()
      assert speed.rows_running == 1
    else:
      assert counts.accepted > 0
      assert counts.drafting_passes == counts.passes - rows


def test_outputs_are_compared_where_they_must_be_equal(speeds):
  for (_, mode), speed in speeds.items():
    expected = None if mode == "drawn" else True
    assert speed.outputs_identical is expected


def test_shares_are_those_of_the_passes_of_every_text(params, specs, speeds):
  """From what was committed when, pass by pass."""
  spec = specs["tree"]
  trial = Trial(spec, params, Packer.of(spec, REQUESTS, ()), REQUESTS[3:])
  _, state = trial.run(trial.start())
  passes = []
  for trace in read_traces(state):
    for number in range(2, trace.passes[-1] + 1):
      origins = trace.origins[trace.passes == number].tolist()
      passes.append([node for node in origins if node])
  counts = speeds["a", "tree"].acceptance
  for depth, share in enumerate(counts.acceptance_by_offset, start=1):
    assert share == np.mean([len(nodes) >= depth for nodes in passes])
  for node in range(1, BRANCHES.size):
    share = np.mean([node in nodes for nodes in passes])
    assert counts.acceptance_by_node[node] == share


def test_each_token_gets_its_share_of_its_pass(params, specs, monkeypatch):
  spec = specs["tree"]
  trial = Trial(spec, params, Packer.of(spec, REQUESTS, ()), REQUESTS[3:])
  results = trial.results(trial.run(trial.start())[1])
  calls = []
  run = Trial.run

  def one_second(self, state, passes):
    calls.append(passes)
    return 1.0, run(self, state, passes)[1]

  monkeypatch.setattr(Trial, "run", one_second)
  secs = trial.token_secs()
  assert set(calls) == {1}
  assert len(secs) == sum(len(r.ids) - 1 for r in results)
  # The tokens of a row's pass share its second.
  assert sum(secs) == pytest.approx(sum(r.passes - 1 for r in results))
  assert len(calls) == max(r.passes - 1 for r in results)


def test_a_mode_that_is_wrong_is_found_out(params, specs, monkeypatch):
  results = Trial.results

  def spoiled(self, state):
    found = results(self, state)
    if self.spec.tree.size > 1:
      ids = (*found[0].ids[:-1], found[0].ids[-1] ^ 1)
      found[0] = found[0].__class__(ids, *list(vars(found[0]).values())[1:])
    return found

  monkeypatch.setattr(Trial, "results", spoiled)
  both = {mode: specs[mode] for mode in ("next", "tree")}
  plain, tree = measure_decoding(params, REQUESTS[3:], both, 2, 1, False)
  assert plain.outputs_identical is True and tree.outputs_identical is False


def test_speeds_follow_from_the_seconds_of_loop_and_host():
  """One row of 9 tokens; plain passes take 2 s, those over a chain 3 s."""

  def record(passes, loop_secs, served_secs):
    result = Result((1,) * 9, (0.0,) * 9, "length", passes, 0, (0,) * 9)
    return decode_speed._Record(
      [types.SimpleNamespace(spec=Spec(MODEL, Tree.chain(1), Stages()))],
      loop_secs, served_secs, [], [[result]],
    )  # fmt: skip

  plain = record(9, [16.0, 16.0], [20.0, 20.0])
  chain = record(5, [12.0, 12.0], [16.0, 16.0])
  speed = decode_speed._speed("a", "chain", chain, plain, None)
  assert speed.pass_secs == 3.0  # the prompt's pass is not in the loop
  assert speed.tokens_per_sec == 8 / 16
  assert speed.speed_over_first == 20 / 16
  # Twice the tokens per pass, at 3/2 the cost, promise 4/3.
  assert speed.kept == pytest.approx((20 / 16) / (2 / (3 / 2)))
  assert decode_speed._speed("a", "next", plain, plain, None).kept == 1
