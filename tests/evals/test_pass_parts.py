"""The parts of a pass, put together again, are the pass."""

import dataclasses

import jax
import numpy as np
import pytest
from tiny import multi_token_model

from mtpjax.config import Heads
from mtpjax.decode import Request, Spec, Stages, Tree, decode_params, verifiers
from mtpjax.decode.batch import Packer
from mtpjax.evals.speed import pass_parts
from mtpjax.evals.speed.trial import Trial

MODEL = multi_token_model(heads_config=Heads(offsets=(1, 2, 3), matched=False))
REQUESTS = [
  Request((1, 2, 3), 60, temperature=1.0, index=0),
  Request((7,), 60, temperature=0.0, index=1),
]


@pytest.mark.parametrize(
  "verifier, tree",
  [(verifiers.Rejection(), Tree.from_branching((2, 2)))],
)
def test_parts_in_turn_make_a_step(verifier, tree):
  params = decode_params(MODEL, MODEL.init(jax.random.key(0)))
  spec = Spec(MODEL, tree, Stages.of(REQUESTS), verifier=verifier)
  packer = Packer.of(spec, REQUESTS, ())
  trial = Trial(spec, params, packer, REQUESTS)
  plain = dataclasses.replace(
    spec, stages=Stages(), verifier=verifiers.Coupled()
  )
  whole, state = trial.start(), trial.start()
  for _ in range(3):
    whole = pass_parts._pass(spec, params, trial.tables, whole)
    noise_BJV = pass_parts._noise(spec, state)
    drafts = pass_parts._draft(spec, params, trial.tables, state, noise_BJV)
    out, logits_BQV = pass_parts._trunk(plain, params, state, drafts.tokens_BQ)
    verdict = pass_parts._verify(spec, trial.tables, state, drafts, logits_BQV)
    state = pass_parts._commit(
      plain, params, trial.tables, state, drafts, out, logits_BQV, verdict
    )
  assert (whole.n_tokens_B >= 4).all()
  for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(whole), strict=True):
    if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
      a, b = jax.random.key_data(a), jax.random.key_data(b)
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
