"""Trunks of other families, and heads behind the final norm, decode exactly."""

import dataclasses

import numpy as np
import pytest
from decoding import (
  CHAIN,
  ROOT,
  WIDE,
  margins,
  multi_token_model,
  random_params,
  random_requests,
  run,
  to_decode,
)

from mtpjax import config as config_lib
from mtpjax.evals.drafts.candidate_ranks import candidate_ranks

FAMILIES = {
  # Texts are up to 44 tokens long: windows of 6 slide over them.
  "mistral": {"sliding_window": 6},
  "qwen2": {"qkv_bias": True, "tied_embeddings": True},
  "qwen3": {"qk_norm": True, "d_head": 10},
  "llama3": {
    "rope_scaling": "llama3", "rope_factor": 4.0, "rope_original_length": 16,
  },
}  # fmt: skip
HEADS = {
  "mistral": config_lib.Heads(kind="block", matched=False),
  "qwen2": config_lib.Heads(
    kind="medusa", tap="normed", matched=False, unembedding="copied", n_layers=2
  ),
  "qwen3": config_lib.Heads(kind="linear", tap="normed", matched=False),
  "llama3": config_lib.Heads(kind="medusa", tap="last", matched=False),
}
TIE = 1e-5


@pytest.mark.parametrize("family", FAMILIES)
def test_drafts_change_nothing_and_a_cache_changes_nothing(family):
  model = multi_token_model(HEADS[family])
  config = dataclasses.replace(model.config, **FAMILIES[family])
  model = dataclasses.replace(model, config=config)
  stacked = random_params(model, 11)
  params = to_decode(model, stacked)
  requests = random_requests(5, 0.0)
  plain = run(model, params, ROOT, requests, is_sampled=False)
  for _, _, margin, is_best, _ in margins(model, stacked, requests, plain):
    assert is_best or margin < TIE
  drafted = run(model, params, WIDE, requests, is_sampled=False)
  assert [r.ids for r in drafted] == [r.ids for r in plain]


def test_a_window_that_slides_changes_what_is_said():
  texts = []
  for window in (0, 6):
    model = multi_token_model(HEADS["mistral"])
    config = dataclasses.replace(model.config, sliding_window=window)
    model = dataclasses.replace(model, config=config)
    params = to_decode(model, random_params(model, 11))
    requests = random_requests(5, 0.0)
    texts.append(run(model, params, ROOT, requests, is_sampled=False))
  assert [r.ids for r in texts[0]] != [r.ids for r in texts[1]]


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama3"])
def test_ranks_are_those_of_the_drafts_that_were_accepted(family):
  # Along a chain, the first draft of a pass is accepted where its rank is 0.
  model = multi_token_model(HEADS[family])
  config = dataclasses.replace(model.config, **FAMILIES[family])
  model = dataclasses.replace(model, config=config)
  stacked = random_params(model, 12)
  params = to_decode(model, stacked)
  requests = random_requests(6, 0.0)
  plain = run(model, params, ROOT, requests, is_sampled=False)
  drafted = run(model, params, CHAIN, requests, is_sampled=False)
  ranks = candidate_ranks(model, stacked, requests, plain, 3)
  for text_NM, request, result in zip(ranks, requests, drafted, strict=True):
    assert text_NM.shape == (len(result.ids), 3)
    passes, at = 1, 0  # the prompt's pass brings the first token
    while at < len(result.ids) - 1:
      row = text_NM[at]
      hits = int(np.argmin([*(row == 0), False]))
      at += min(hits, len(result.ids) - 2 - at) + 1
      passes += 1
    assert passes == result.passes, request
