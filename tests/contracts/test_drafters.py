"""What every drafter promises; one is added by one file and one line."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decoding import (
  BLOCK,
  CHAIN,
  ROOT,
  V,
  counter_params,
  multi_token_model,
  random_params,
  random_requests,
  run,
  to_decode,
)

from mtpjax import cli, decode
from mtpjax import config as config_lib
from mtpjax.decode import drafters
from mtpjax.decode.drafters import DRAFTERS, Drafter, Drafts
from mtpjax.errors import UserError

CHAINED = config_lib.Heads(
  kind="sequential", offsets=(1, 2, 3, 4), tap="last", matched=False
)


@dataclasses.dataclass(frozen=True)
class Again(Drafter):
  """The root over and over; keeps nothing."""

  def propose(self, context, carry):
    tree = context.tree
    tokens_BI = jnp.repeat(context.root_B[:, None], tree.size - 1, axis=1)
    probs_BMV = None
    if context.draws:
      probs_BMV = jax.nn.one_hot(tokens_BI, context.model.config.vocab_size)
    return Drafts.after(
      context.root_B, tokens_BI, jnp.ones_like(tokens_BI, bool), probs_BMV,
      tuple(range(tree.size - 1)),
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Bigrams(Drafter):
  """What came after a token the last time; remembers it for every token."""

  keeps_nothing: ClassVar[bool] = False

  def empty(self, model, batch, positions) -> Any:
    return jnp.full((batch, model.config.vocab_size), -1, jnp.int32)

  def prefill(self, model, params, carry, prompts):
    # The last of several counts: written in order.
    for t in range(prompts.tap_BTD.shape[1]):
      carry = self._note(
        carry, prompts.tokens_BS[:, t], prompts.tokens_BS[:, t + 1],
        t < prompts.length_B,
      )  # fmt: skip
    return carry

  @staticmethod
  def _note(carry, before_B, after_B, counts_B):
    rows_B = jnp.arange(len(before_B))
    kept_B = carry[rows_B, before_B]
    return carry.at[rows_B, before_B].set(jnp.where(counts_B, after_B, kept_B))

  def propose(self, context, carry):
    tokens = []
    token_B = context.root_B
    for _ in range(context.tree.size - 1):
      token_B = carry[jnp.arange(len(token_B)), jnp.maximum(token_B, 0)]
      tokens.append(token_B)
    tokens_BI = jnp.stack(tokens, axis=1)
    is_valid_BI = jnp.cumprod(tokens_BI >= 0, axis=1).astype(bool)
    return Drafts.after(context.root_B, jnp.maximum(tokens_BI, 0), is_valid_BI)

  def commit(self, model, params, carry, committed):
    before_B = committed.root_B
    for j in range(committed.tokens_BJ.shape[1]):
      after_B = committed.tokens_BJ[:, j]
      counts_B = j < committed.n_tokens_B
      carry = self._note(carry, before_B, after_B, counts_B)
      before_B = after_B
    return carry


TOYS = {"again": Again(), "bigrams": Bigrams()}


def values():
  """Heads of a model and a drafter for it, of every entry and every toy."""
  model, chained = multi_token_model(BLOCK), multi_token_model(CHAINED)
  heads = drafters.drafting_heads(model, 3)
  made = {
    "none": drafters.NoDrafts(),
    "parallel": heads,
    "chain": drafters.drafting_heads(chained, 3),
    "lookup": drafters.Lookup(),
    "merged": drafters.Merged(heads, drafters.Lookup(), least=1),
  }
  assert made.keys() == DRAFTERS.keys(), "a new drafter is tested here"
  assert all(isinstance(made[name], kind) for name, kind in DRAFTERS.items())
  return {
    name: (CHAINED if name == "chain" else BLOCK, drafter)
    for name, drafter in made.items()
  } | {name: (BLOCK, drafter) for name, drafter in TOYS.items()}


VALUES = values()


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_texts_are_those_of_plain_decoding(name, temperature):
  heads_config, drafter = VALUES[name]
  model = multi_token_model(heads_config)
  params = to_decode(model, random_params(model, 3))
  asked = random_requests(3, temperature)
  tree = ROOT if name == "none" else CHAIN
  plain = run(model, params, ROOT, asked, (3,), drafter=drafters.NoDrafts())
  drafted = run(model, params, tree, asked, (3,), drafter=drafter)
  for one, two in zip(plain, drafted, strict=True):
    assert (one.ids, one.finish_reason) == (two.ids, two.finish_reason)
    np.testing.assert_allclose(one.logprobs, two.logprobs, rtol=0, atol=1e-4)
  assert sum(r.proposed for r in drafted) > 0 or name == "none"


@dataclasses.dataclass(frozen=True)
class Bare(Again):
  """Does not say what its drafts were drawn from."""

  def propose(self, context, carry):
    return super().propose(context._replace(draws=False), carry)


@pytest.mark.parametrize("name", decode.verifiers.VERIFIERS)
def test_drafts_without_distributions_are_refused_where_they_are_needed(name):
  model = multi_token_model()
  params = to_decode(model, random_params(model, 1))
  verifier = decode.verifiers.VERIFIERS[name]()
  asked = random_requests(1, 0.8)

  def ask():
    return run(model, params, CHAIN, asked, drafter=Bare(), verifier=verifier)

  if verifier.needs_draft_probs:
    with pytest.raises(UserError, match=f"{name} needs .* drafter Bare gives"):
      ask()
  else:
    assert all(result.ids for result in ask())


@pytest.mark.parametrize("name", VALUES)
def test_it_is_a_value_and_its_carry_is_of_the_requests(name):
  heads_config, drafter = VALUES[name]
  model = multi_token_model(heads_config)
  assert hash(drafter) == hash(dataclasses.replace(drafter))
  carry = jax.eval_shape(lambda: drafter.empty(model, 5, 16))
  leaves = jax.tree.leaves(carry)
  assert all(leaf.shape[0] == 5 for leaf in leaves)
  assert drafter.keeps_nothing == (not leaves)


def test_a_carry_is_right_when_it_drafts_right():
  # A text that has come again and again: bigrams are always right then.
  model = multi_token_model()
  asked = [decode.Request(tuple(range(V)) * 2, 2 * V) for _ in range(4)]
  results = run(model, counter_params(), CHAIN, asked, drafter=Bigrams())
  for result in results:
    assert result.passes == 1 + -(-(2 * V - 1) // 4)
    # Five passes of three drafts and one token more, and a last one that is
    # cut after its first draft.
    assert result.accepted == 16


@pytest.mark.parametrize("name", TOYS)
def test_a_toy_is_one_line_away_from_the_command_line(
  name, in_tiny_root, monkeypatch, capsys
):
  toy = decode.MODES["lookup"]
  monkeypatch.setitem(
    decode.MODES, name,
    dataclasses.replace(toy, drafter=lambda *_: TOYS[name]),
  )  # fmt: skip
  texts = []
  for mode in (name, "next"):
    argv = ["generate", "runs/quickstart", "--prompt", "def f1("]
    assert cli.main([*argv, "--mode", mode, "--max-new-tokens", "12"]) == 0
    texts.append(capsys.readouterr().out)
  assert texts[0] == texts[1] != ""
