"""Numbers of a request: stated once, and a toy filter with one of its own."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from decoding import (
  CHAIN,
  ROOT,
  forward_logits,
  multi_token_model,
  random_params,
  random_requests,
  run,
  to_decode,
)

from mtpjax import cli, decode
from mtpjax import config as config_lib
from mtpjax.config.sampling import Range, number
from mtpjax.decode import filters
from mtpjax.decode.controls import ControlShapes, Stages
from mtpjax.errors import UserError

V = 11


@dataclasses.dataclass(frozen=True)
class Skipping(decode.Request):
  """A toy: a request that never takes the likeliest token."""

  skip_best: int = number(0, "leave the likeliest token out", Range(0, 1))


def skip_best(skips_B1, logits_BQV):
  best_BQ1 = jnp.max(logits_BQV, axis=-1, keepdims=True)
  return (skips_B1 == 0)[..., None] | (logits_BQV < best_BQ1)


@pytest.fixture
def skipping(monkeypatch):
  monkeypatch.setitem(filters.FILTERS, "skip_best", skip_best)


def asked(skips):
  return [
    Skipping(**vars(request) | {"skip_best": skip})
    for request, skip in zip(random_requests(3, 0.0), skips, strict=True)
  ]


def test_a_toy_filter_changes_what_its_rows_take_and_no_other(skipping):
  model = multi_token_model()
  params = random_params(model, 3)
  requests = asked((1, 0, 1, 0))
  plain = run(model, to_decode(model, params), ROOT, requests)
  drafted = run(model, to_decode(model, params), CHAIN, requests)
  assert [r.ids for r in plain] == [r.ids for r in drafted]
  texts = [q.ids + r.ids for q, r in zip(requests, plain, strict=True)]
  logits_BTV = forward_logits(model, params, texts)
  for request, result, logits_TV in zip(
    requests, plain, logits_BTV, strict=True
  ):
    n = len(request.ids)
    order = np.argsort(-logits_TV[n - 1 : n - 1 + len(result.ids)], axis=-1)
    assert result.ids == tuple(order[:, request.skip_best].tolist())


def test_requests_without_it_run_as_ever(skipping):
  model = multi_token_model()
  params = to_decode(model, random_params(model, 3))
  plain = random_requests(3, 0.0)
  alone = run(model, params, ROOT, plain)
  assert not Stages.of(plain).truncates
  # Beside one that has it, too, and where others truncate.
  mixed = [*asked((1, 0, 0, 0))[:1], *plain[1:]]
  beside = run(model, params, ROOT, mixed)
  assert [r.ids for r in beside[1:]] == [r.ids for r in alone[1:]]
  for request in plain:
    one = dataclasses.replace(request, top_k=1)
    assert run(model, params, ROOT, [one])[0].ids


def test_its_range_is_checked_in_one_line(skipping):
  with pytest.raises(UserError, match="^p: skip_best 2 must be from 0 to 1$"):
    dataclasses.replace(asked((0,) * 4)[0], skip_best=2).check("p", V, ())


@pytest.mark.parametrize("name", config_lib.NUMBERS)
def test_a_number_is_the_same_everywhere(name, capsys):
  of_config = config_lib.Decode.__dataclass_fields__[name]
  of_request = decode.Request.__dataclass_fields__[name]
  assert of_config is of_request is config_lib.NUMBERS[name]
  # Its neutral value is in range, and asks for no stage.
  request = decode.Request((1,), 9)
  assert request.is_neutral(name) and request.out_of_range() is None
  assert Stages.of([request]) == Stages()
  # A value out of range is the same line for an experiment and a request.
  wrong = {name: -1 if isinstance(of_config.default, int) else -1e30}
  with pytest.raises(UserError) as of_decode:
    config_lib.Decode(**wrong)
  with pytest.raises(UserError) as of_request:
    decode.Request((1,), 9, **wrong).check("prompt", V, ())
  ends = [str(e.value).split(" must be ")[1] for e in (of_decode, of_request)]
  assert ends[0] == ends[1]
  with pytest.raises(SystemExit):
    cli.main(["generate", "--help"])
  assert f"--{name.replace('_', '-')} " in capsys.readouterr().out


def test_every_filter_leaves_neutral_rows_alone():
  requests = [decode.Request((1,), 9)]
  shapes = ControlShapes.of(Stages(truncates=True), requests, V)
  numbers = shapes.pack(requests).numbers
  logits_BQV = jnp.asarray(np.random.default_rng(0).normal(size=(1, 3, V)))
  np.testing.assert_array_equal(filters.apply(numbers, logits_BQV), logits_BQV)
