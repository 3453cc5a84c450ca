"""A pass taken apart: each part of it jitted by itself, at the same shapes."""

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any

import jax

from mtpjax.decode import DecodeState, Spec, Stages, verifiers
from mtpjax.decode import step as passes
from mtpjax.decode.drafters import Drafts
from mtpjax.decode.sampling import Tables
from mtpjax.decode.verifiers import Verdict
from mtpjax.evals.speed.trial import Trial

_SERIES = 20  # calls that are timed together


@dataclasses.dataclass(frozen=True)
class PassParts:
  """Seconds of a pass outside the loop, and of its parts.

  The compiler fuses across parts: their sum is not quite the pass.

  Attributes:
    bare_pass_secs: the whole pass, called alone.
    trunk_secs: the trunk and the unembedding at all nodes.
    draft_secs: the drafter, and filling the tree; 0 without one.
    verify_secs: the noise, the logits pipeline and the verifier.
    commit_secs: writing the accepted path to caches and buffers.
  """

  bare_pass_secs: float
  trunk_secs: float
  draft_secs: float
  verify_secs: float
  commit_secs: float


def measure_parts(trial: Trial) -> PassParts:
  """Times a pass and its parts.

  Args:
    trial: the program and its requests. The texts go on while they are timed,
      and what has ended costs the same as what has not.

  Returns:
    Mean seconds over a series of calls; those of the first time are no good,
    as they compile.
  """
  spec, params, tables = trial.spec, trial.params, trial.tables
  # What is run and committed does not depend on how it is chosen: one program.
  plain = dataclasses.replace(
    spec, stages=Stages(), verifier=verifiers.Coupled()
  )
  state = trial.start()
  noise_BJV = _noise(spec, state)
  draft_secs, drafts = _series(_draft, spec, params, tables, state, noise_BJV)
  trunk_secs, (out, logits_BQV) = _series(
    _trunk, plain, params, state, drafts.tokens_BQ
  )
  verify_secs, verdict = _series(
    _verify, spec, tables, state, drafts, logits_BQV
  )

  def commit(state: DecodeState) -> DecodeState:
    return _commit(
      plain, params, tables, state, drafts, out, logits_BQV, verdict
    )

  commit_secs, _ = _donating_series(commit, state)
  return PassParts(
    bare_pass_secs(trial),
    trunk_secs,
    draft_secs if spec.n_ranked or spec.tree.max_depth else 0.0,
    verify_secs,
    commit_secs,
  )


def bare_pass_secs(trial: Trial) -> float:
  """Returns the mean seconds of whole passes, called alone."""

  def one(state: DecodeState) -> DecodeState:
    return _pass(trial.spec, trial.params, trial.tables, state)

  return _donating_series(one, trial.start())[0]


def draft_secs(trial: Trial) -> float:
  """Returns the mean seconds of the drafter alone."""
  state = trial.start()
  noise_BJV = _noise(trial.spec, state)
  return _series(
    _draft, trial.spec, trial.params, trial.tables, state, noise_BJV
  )[0]


def _series(part: Callable[..., Any], *args: Any) -> tuple[float, Any]:
  begin = time.perf_counter()
  for _ in range(_SERIES):
    out = part(*args)
  jax.block_until_ready(out)
  return (time.perf_counter() - begin) / _SERIES, out


def _donating_series(
  part: Callable[[DecodeState], DecodeState], state: DecodeState
) -> tuple[float, DecodeState]:
  begin = time.perf_counter()
  for _ in range(_SERIES):
    state = part(state)
  jax.block_until_ready(state)
  return (time.perf_counter() - begin) / _SERIES, state


# The parts of `decode.step`, each a program.
_jit = functools.partial(jax.jit, static_argnums=0)
_noise, _draft, _trunk = map(
  _jit, (passes.noise_after_root, passes.draft, passes.run_tree)
)
_pass = _jit(passes.step, donate_argnames="state")
_commit = _jit(passes.commit, donate_argnames="state")


@_jit
def _verify(
  spec: Spec,
  tables: Tables,
  state: DecodeState,
  drafts: Drafts,
  logits_BQV: jax.Array,
) -> Verdict:
  noise_BJV = passes.noise_after_root(spec, state)
  return passes.verify(spec, tables, state, drafts, logits_BQV, noise_BJV)
