"""Ids that the tokenizer lacks are never generated, whoever drafts."""

import dataclasses

import pytest
from decoding import (
  CHAIN,
  ROOT,
  V,
  multi_token_model,
  random_params,
  random_requests,
  run,
  to_decode,
)

from mtpjax import decode
from mtpjax.api.prompts import RequestMaker, read_prompt
from mtpjax.config import Config
from mtpjax.data.tokenizers import ByteTokenizer
from mtpjax.decode import batch as batches
from mtpjax.errors import UserError

MISSING = frozenset({0, 4, 7, V - 1})  # holes, and a padded end


# Sampled and greedy rows; one set, so that programs are shared.
REQUESTS = random_requests(0, 0.8)[:2] + random_requests(0, 0.0)[2:]


def results(tree, seed, program=None, **changes):
  model = multi_token_model()
  decoded = to_decode(model, random_params(model, seed))
  requests = [dataclasses.replace(r, **changes) for r in REQUESTS]
  return run(model, decoded, tree, requests, **(program or {}))


@pytest.mark.parametrize(
  "program",
  [
    {},
    {"verifier": "rejection"},
    {"verifier": "typical"},
    {"verifier": "block", "drafter": "lookup"},
  ],
)
def test_no_text_has_them_whoever_drafts(program):
  for seed in range(4):
    for result in results(CHAIN, seed, program, missing_ids=MISSING):
      assert not MISSING & {*result.ids}
      assert result.finish_reason == "length"


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
    asked = read_prompt({"text": "a"} | own, Config(), "prompt 0")
    maker = RequestMaker(tokenizer, (257,), vocab_size)
    return maker.make(asked, [97], 0, "prompt 0")

  assert made(ByteTokenizer(), 258).missing_ids == frozenset()
  assert made(ByteTokenizer(), 384).missing_ids == set(range(258, 384))
  assert made(Holes(), 280).missing_ids == {270}
  made(ByteTokenizer(), 384, logit_bias="300:-1").check("it", 384, (257,))
  with pytest.raises(UserError) as caught:
    made(ByteTokenizer(), 384, logit_bias="300:1").check("it", 384, (257,))
  assert str(caught.value).startswith("it: logit_bias favours id 300, which")
