"""What every verifier promises; one is added by one file and one line."""

import dataclasses
from typing import ClassVar

import enumeration as en
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decoding import (
  CHAIN,
  ROOT,
  multi_token_model,
  random_params,
  random_requests,
  run,
  to_decode,
)

from mtpjax import cli, decode
from mtpjax import config as config_lib
from mtpjax.decode import verifiers
from mtpjax.decode.verifiers import VERIFIERS, Conditionals, Verifier
from mtpjax.errors import UserError


@dataclasses.dataclass(frozen=True)
class AtLeast(Verifier):
  """Takes drafts of enough probability: lossy, with an option of its own."""

  probability: float = 0.5
  is_lossless: ClassVar[bool] = False

  def judge(
    self, tree, tokens_BQ, valid_BQ, target_BQV, draft_BMV, drawn_from=()
  ):
    del draft_BMV, drawn_from
    at_parent_BQV = target_BQV[:, np.array(tree.parents)]
    mass_BQ = jnp.take_along_axis(at_parent_BQV, tokens_BQ[..., None], axis=-1)[
      ..., 0
    ]
    taken_BQ = valid_BQ & (mass_BQ >= self.probability)
    return Conditionals(taken_BQ.astype(target_BQV.dtype), target_BQV)


@pytest.fixture
def at_least(monkeypatch):
  monkeypatch.setitem(VERIFIERS, "at-least", AtLeast)


@pytest.mark.parametrize("name", [*VERIFIERS, "at-least"])
def test_greedy_rows_are_those_of_plain_decoding(name, at_least):
  model = multi_token_model()
  params = to_decode(model, random_params(model, 4))
  asked = random_requests(4, 0.0)
  plain = run(model, params, ROOT, asked)
  drafted = run(model, params, CHAIN, asked, verifier=VERIFIERS[name]())
  assert [r.ids for r in plain] == [r.ids for r in drafted]


def distance(verifier):
  """Total variation between what it commits and the model, by enumeration."""
  tree = decode.Tree.chain(2)
  rng = np.random.default_rng(0)
  tables = [
    rng.dirichlet(np.ones(2), (2,) * depth) for depth in range(4)
  ]  # p after each text
  rows = en.drafts(tree, tables, rng.dirichlet(np.ones(2), 2))
  got = jax.jit(verifier.judge, static_argnums=0)(
    tree, *(jnp.asarray(x) for x in rows[:4])
  )
  joint = en.outcome(
    tree, tables, rows, np.asarray(got.accept_BQ), np.asarray(got.emit_BQV)
  )
  return en.total_variation(joint, en.law(tables, 3))


@pytest.mark.parametrize("name", [*VERIFIERS, "at-least"])
def test_it_is_lossless_if_it_says_so(name, at_least, x64):
  verifier = VERIFIERS[name]()
  if verifier.shares_noise:
    # Texts are equal then, not only their distribution; it has no judge.
    assert verifier.is_lossless
    with pytest.raises(NotImplementedError):
      distance(verifier)
    return
  assert (distance(verifier) < 1e-12) == verifier.is_lossless


@pytest.mark.parametrize("name", [*VERIFIERS, "at-least"])
def test_it_takes_chains_and_refuses_branches_if_it_says_so(name, at_least):
  verifier = VERIFIERS[name]()
  verifier.check(decode.Tree.chain(3))
  branches = decode.Tree.from_branching((2, 2))
  if verifier.chains_only:
    with pytest.raises(UserError, match="verifier: "):
      verifier.check(branches)
  else:
    verifier.check(branches)


def of(verifier, **settings):
  return verifiers.of(config_lib.Decode(verifier=verifier, **settings))


def test_options_are_fields(at_least):
  assert of("at-least") == AtLeast(0.5)
  assert of("at-least:probability=0.25") == AtLeast(0.25)
  assert of("typical", typical_epsilon=0.2) == verifiers.Typical(0.2, 0.3)
  assert of("typical:delta=0.5") == verifiers.Typical(0.09, 0.5)


@pytest.mark.parametrize(
  "verifier, words",
  [
    ("best", ["'best' is not one of", *VERIFIERS]),
    ("typical:gamma=1", ["no option 'gamma'", "epsilon=NUMBER"]),
    ("typical:delta=x", ["'delta=x' is no number"]),
    ("coupled:a=1", ["no option 'a'", "no options"]),
  ],
)
def test_mistakes_are_one_line(verifier, words):
  with pytest.raises(UserError) as error:
    of(verifier)
  assert "\n" not in str(error.value)
  for word in words:
    assert word in str(error.value)


def test_a_toy_is_one_line_away_from_the_command_line(
  in_tiny_root, at_least, capsys
):
  argv = ["generate", "runs/quickstart", "--prompt", "def f1(", "--seed", "1"]
  argv += ["--max-new-tokens", "8", "--temperature", "1", "--verifier"]
  assert cli.main([*argv, "at-least:probability=0.1"]) == 0
  captured = capsys.readouterr()
  assert "verifier at-least:probability=0.1 is LOSSY" in " ".join(
    (captured.out + captured.err).split()
  )
