"""Ids that the tokenizer lacks are never generated, whoever drafts."""

import dataclasses
import pathlib

import pytest
from decoding import (
  BLOCK,
  CHAIN,
  ROOT,
  WIDE,
  V,
  multi_token_model,
  random_params,
  random_requests,
  run,
  to_decode,
)

from mtpjax import decode
from mtpjax.api import Loaded
from mtpjax.api.prompts import read_prompt
from mtpjax.api.requests import RequestMaker
from mtpjax.config import Config
from mtpjax.data.byte_tokenizer import ByteTokenizer
from mtpjax.decode import batch as batches
from mtpjax.decode import drafters, verifiers
from mtpjax.errors import UserError
from mtpjax.heads import MultiTokenModel

MISSING = frozenset({0, 4, 7, V - 1})  # holes, and a padded end


# Sampled and greedy rows; one set, so that programs are shared.
REQUESTS = random_requests(0, 0.8)[:2] + random_requests(0, 0.0)[2:]


EOS = min(set(range(V)) - MISSING)


def results(tree, seed, program=None, **changes):
  model = multi_token_model()
  decoded = to_decode(model, random_params(model, seed))
  requests = [dataclasses.replace(r, **changes) for r in REQUESTS]
  return run(model, decoded, tree, requests, **(program or {}))


@pytest.mark.parametrize(
  "tree, program",
  [
    (CHAIN, {}),
    (WIDE, {}),
    (CHAIN, {"verifier": verifiers.Rejection()}),
    (CHAIN, {"verifier": verifiers.Typical()}),
    (CHAIN, {"verifier": verifiers.Block(), "drafter": drafters.Lookup()}),
  ],
)
def test_no_text_has_them_whoever_drafts(tree, program):
  for seed in range(4):
    for result in results(tree, seed, program, missing_ids=MISSING):
      assert not MISSING & {*result.ids}
      assert result.finish_reason == "length"


def test_nor_where_ends_are_held_back_or_ignored():
  """With few ids left, and what else bans some of them."""
  few = frozenset(range(V)) - {EOS, 2, 3}
  n = min(r.max_new_tokens for r in REQUESTS)
  for least, eos_ids in ((n, (EOS,)), (0, (EOS,)), (0, ())):
    held = results(
      WIDE, 0, {"eos_ids": eos_ids}, missing_ids=few, min_new_tokens=least
    )
    for result in held:
      assert {*result.ids} <= {EOS, 2, 3}
      assert EOS not in result.ids[:least]
    if not eos_ids:
      assert {r.finish_reason for r in held} == {"length"}


def test_the_others_are_drawn_as_with_a_bias_that_rules_out():
  bias = tuple((i, -1e9) for i in MISSING)
  would_have = 0
  for seed in range(4):
    held = results(ROOT, seed, missing_ids=MISSING)
    # Log-probabilities are the model's own, before any mask.
    assert held == results(ROOT, seed, logit_bias=bias)
    would_have += sum(bool(MISSING & {*r.ids}) for r in results(ROOT, seed))
  assert would_have


def test_programs_of_a_whole_vocabulary_have_no_mask():
  model = multi_token_model()
  spec = decode.Spec(model, ROOT)
  for missing, has_mask in ((frozenset(), False), (MISSING, True)):
    requests = [decode.Request((1,), 4, missing_ids=missing)]
    tables = batches.Packer.of(spec, requests, ()).tables
    assert (tables.is_token_V is not None) == has_mask


class Holes(ByteTokenizer):
  """Skips an id, and has one beyond the model's."""

  ids = frozenset(range(300)) - {270}


def test_what_a_tokenizer_lacks_goes_into_its_requests():
  def made(tokenizer, vocab_size, **own):
    config = dataclasses.replace(
      multi_token_model().config, vocab_size=vocab_size
    )
    model = MultiTokenModel(config, BLOCK, multi_token_model().mesh)
    loaded = Loaded(Config(), model, None, tokenizer, pathlib.Path(), 0, "")
    assert loaded.eos_ids == (257,)
    asked = read_prompt({"text": "a"} | own, Config(), "prompt 0")
    maker = RequestMaker(tokenizer, (257,), loaded.missing_ids, vocab_size)
    return maker.make(asked, [97], 0, "prompt 0")

  assert made(ByteTokenizer(), 258).missing_ids == frozenset()
  assert made(ByteTokenizer(), 384).missing_ids == set(range(258, 384))
  assert made(Holes(), 280).missing_ids == {270}
  made(ByteTokenizer(), 384, logit_bias="300:-1").check("it", 384, (257,))
  with pytest.raises(UserError) as caught:
    made(ByteTokenizer(), 384, logit_bias="300:1").check("it", 384, (257,))
  assert str(caught.value).startswith("it: logit_bias favours id 300, which")
