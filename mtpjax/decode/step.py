"""One pass of decoding, a pure function of parameters and state."""

from typing import Any

import jax
import jax.numpy as jnp

from mtpjax.decode import history, noise, verifiers
from mtpjax.decode.advance import advance, final_at_nodes
from mtpjax.decode.drafters import Candidates, Committed, Context, Drafts
from mtpjax.decode.sampling import Tables, choose, final_logits
from mtpjax.decode.spec import Spec
from mtpjax.decode.state import DecodeState, token_logprobs
from mtpjax.errors import UserError
from mtpjax.model import Placement, TrunkOutput, cache, masks


def step(
  spec: Spec, params: Any, tables: Tables, state: DecodeState
) -> DecodeState:
  """Drafts fill the tree, one pass verifies them, the accepted path stays.

  Args:
    spec: the program.
    params: from `decode_params`.
    tables: EOS ids and grammars.
    state: the state; the cache has room for the tree's longest path.

  Returns:
    The next state. Rows that have finished stay as they are.
  """
  noise_BJV = noise_after_root(spec, state)
  drafts = draft(spec, params, tables, state, noise_BJV)
  out, logits_BQV = run_tree(spec, params, state, drafts.tokens_BQ)
  verdict = verify(spec, tables, state, drafts, logits_BQV, noise_BJV)
  return commit(spec, params, tables, state, drafts, out, logits_BQV, verdict)


def draft(
  spec: Spec,
  params: Any,
  tables: Tables,
  state: DecodeState,
  noise_BJV: jax.Array | None,
) -> Drafts:
  """Runs the drafter of a program; arguments as of `context_of`."""
  context = context_of(spec, params, tables, state, noise_BJV)
  return spec.drafter.propose(context, state.draft)


def context_of(
  spec: Spec,
  params: Any,
  tables: Tables,
  state: DecodeState,
  noise_BJV: jax.Array | None,
) -> Context:
  """Returns what a drafter may look at.

  Args:
    spec: the program.
    params: from `decode_params`.
    tables: EOS ids and grammars.
    state: what is committed.
    noise_BJV: from `noise_after_root`; None where drafts share none.

  Returns:
    The context.
  """
  depths, vocab_size = spec.n_ranked, spec.model.config.vocab_size
  noise_BMV = noise_BJV
  if spec.draws_apart and depths:
    noise_BMV = noise.draft_noise(
      state.controls.keys_B, state.length_B, depths, vocab_size
    )
  histories = history.of_drafts(state, depths) if depths else None

  def rank(first: int, logits_BMV: jax.Array, width: int) -> Candidates:
    at = slice(first, first + logits_BMV.shape[1])
    final_BMV = final_logits(
      spec.stages,
      tables,
      state.controls,
      state.seen_BV,
      jax.tree.map(lambda x: x[:, at], histories),
      logits_BMV,
    )
    scores_BMC, tokens_BMC = jax.lax.top_k(
      choose(
        state.controls,
        final_BMV,
        None if noise_BMV is None else noise_BMV[:, at],
      ),
      width,
    )
    probs_BMV = None
    if spec.draws_apart:
      probs_BMV = jax.nn.softmax(final_BMV, axis=-1)
    return Candidates(tokens_BMC, scores_BMC > -jnp.inf, probs_BMV)

  return Context(
    spec.model, params, spec.tree, state.tokens_BS, state.length_B,
    state.root_B, spec.draws_apart, rank,
  )  # fmt: skip


def run_tree(
  spec: Spec, params: Any, state: DecodeState, tokens_BQ: jax.Array
) -> tuple[TrunkOutput, jax.Array]:
  """Runs the trunk over all nodes; returns its output and logits [B, Q, V]."""
  model, tree = spec.model, spec.tree
  out = model.apply_trunk(
    params["lm"],
    tokens_BQ,
    Placement(
      state.length_B[:, None] + jnp.asarray(tree.depth_Q),
      masks.Tree(jnp.asarray(tree.ancestors_QQ), state.length_B),
    ),
    state.cache,
  )
  return out, model.trunk.logits(params["lm"], out.hidden_BTD)


def commit(
  spec: Spec,
  params: Any,
  tables: Tables,
  state: DecodeState,
  drafts: Drafts,
  out: TrunkOutput,
  logits_BQV: jax.Array,
  verdict: verifiers.Verdict,
) -> DecodeState:
  """Writes the accepted path into caches and text.

  Args:
    spec: the program.
    params: from `decode_params`.
    tables: EOS ids and grammars.
    state: what was committed before.
    drafts: what the tree was filled with.
    out: of `run_tree`.
    logits_BQV: of `run_tree`.
    verdict: from `verify`.

  Returns:
    The next state.
  """
  path_BJ = verdict.path_BJ
  # No token is below 0.
  start_B = cache.after_reads(state.length_B, verdict.tokens_BJ[:, 0] < 0)
  committed = Committed(
    out.tap_BTD,
    state.length_B[:, None] + jnp.asarray(spec.tree.depth_Q),
    state.root_B,
    path_BJ,
    verdict.tokens_BJ,
    verdict.n_tokens_B,
    start_B,
  )
  state = state.replace(
    cache=tuple(
      cache.commit(c, rows, path_BJ, start_B)
      for c, rows in zip(state.cache, out.rows, strict=True)
    ),
    draft=spec.drafter.commit(spec.model, params, state.draft, committed),
  )
  logits_BJV = jnp.take_along_axis(logits_BQV, path_BJ[..., None], axis=1)
  # The token after node j of the path is its node j + 1, while that is one.
  following_BJ = jnp.roll(path_BJ, -1, axis=1)
  n_accepted_B1 = verdict.n_tokens_B[:, None] - 1
  is_accepted_BJ = jnp.arange(path_BJ.shape[1]) < n_accepted_B1
  return advance(
    tables,
    state,
    verdict.tokens_BJ,
    token_logprobs(logits_BJV, verdict.tokens_BJ),
    verdict.n_tokens_B,
    jnp.where(is_accepted_BJ, following_BJ, 0),
    jnp.sum(drafts.is_valid_BQ[:, 1:], axis=-1),
  )


def noise_after_root(spec: Spec, state: DecodeState) -> jax.Array | None:
  """Returns the noise of the positions after the root.

  The token after a node of depth d, and a draft of depth d + 1, read [:, d].
  None in programs that are greedy or flip coins instead.
  """
  flips_coins = not spec.verifier.shares_noise and spec.tree.max_depth > 0
  if not spec.stages.is_sampled or flips_coins:
    return None
  n = 1 + max(spec.tree.max_depth, spec.n_ranked)
  positions_BJ = state.length_B[:, None] + 1 + jnp.arange(n)
  return noise.position_noise(
    state.controls.keys_B, positions_BJ, spec.model.config.vocab_size
  )


def verify(
  spec: Spec,
  tables: Tables,
  state: DecodeState,
  drafts: Drafts,
  logits_BQV: jax.Array,
  noise_BJV: jax.Array | None,
) -> verifiers.Verdict:
  """Decides which path of the tree stands, and the token after it.

  Args:
    spec: the program.
    tables: EOS ids and grammars.
    state: what was committed before.
    drafts: what the tree was filled with.
    logits_BQV: of the model, after each node.
    noise_BJV: from `noise_after_root`.

  Returns:
    The verdict, before anything is cut.
  """
  tree, controls = spec.tree, state.controls
  tokens_BQ, is_valid_BQ = drafts.tokens_BQ, drafts.is_valid_BQ
  final_BQV = final_at_nodes(spec, tables, state, tree, tokens_BQ, logits_BQV)
  # Greedy rows and coupled noise: what plain decoding would choose there.
  noise_BQV = None if noise_BJV is None else noise_BJV[:, tree.depth_Q]
  targets_BQ = jnp.argmax(choose(controls, final_BQV, noise_BQV), axis=-1)
  matched = verifiers.match(tree, tokens_BQ, is_valid_BQ, targets_BQ)
  is_root = tree.max_depth == 0
  if not spec.stages.is_sampled or spec.verifier.shares_noise or is_root:
    return matched
  if spec.verifier.needs_draft_probs and drafts.probs_BMV is None:
    raise UserError(
      f"decode.verifier: {verifiers.name_of(spec.verifier)} needs the "
      "distributions that drafts were drawn from, and the drafter "
      f"{type(spec.drafter.keeper).__name__} gives none; take verifier "
      "coupled, or pass probs_BMV to its Drafts"
    )
  conditionals = spec.verifier.judge(
    tree,
    tokens_BQ,
    is_valid_BQ,
    jax.nn.softmax(final_BQV, axis=-1),
    drafts.probs_BMV,
    drafts.drawn_from,
  )
  sampled = verifiers.sample(
    tree, tokens_BQ, conditionals,
    *noise.coins(controls.keys_B, state.length_B, tree.size),
  )  # fmt: skip

  def pick(a: jax.Array, b: jax.Array) -> jax.Array:
    is_sampled_B = controls.is_sampled_B
    return jnp.where(
      is_sampled_B[:, None] if a.ndim == 2 else is_sampled_B, a, b
    )

  return jax.tree.map(pick, sampled, matched)
