"""One pass of decoding, a pure function of parameters and state."""

from typing import Any

import jax
import jax.numpy as jnp

from mtpjax.decode import endings, history, noise, verifiers
from mtpjax.decode.drafters import heads as heads_drafter
from mtpjax.decode.drafters import sequential
from mtpjax.decode.drafters.drafts import Drafts
from mtpjax.decode.drafters.propose import fill_tree, propose
from mtpjax.decode.grammar import automaton as automata
from mtpjax.decode.sampling import Tables, choose, final_logits, has_ended
from mtpjax.decode.spec import Spec
from mtpjax.decode.state import DecodeState, token_logprobs, write_block
from mtpjax.decode.tree import Tree
from mtpjax.heads import HeadContext
from mtpjax.model import TrunkOutput, cache, masks


def prefill(
  spec: Spec,
  params: Any,
  tables: Tables,
  prompt_BT: jax.Array,
  state: DecodeState,
) -> DecodeState:
  """Runs the prompts and commits their first token.

  Args:
    spec: the program.
    params: from `decode_params`.
    tables: EOS ids and grammars.
    prompt_BT: prompts, padded on the right with any ids.
    state: a state whose texts are the prompts, at least one token each, and
      whose root is their last token.

  Returns:
    The state after the first token.
  """
  model, n = spec.model, prompt_BT.shape[1]
  positions_BT = jnp.broadcast_to(jnp.arange(n), prompt_BT.shape)
  is_prompt_BT = positions_BT < state.prompt_length_B[:, None]
  mask = masks.packed(is_prompt_BT.astype(jnp.int32))
  out = model.apply_trunk(params["lm"], prompt_BT, positions_BT, mask)
  head_caches = state.head_caches
  if not model.is_chain:
    head_caches = heads_drafter.fill(
      model, params["heads"], head_caches, out.tap_BTD, positions_BT
    )
  last_B11 = (state.prompt_length_B - 1)[:, None, None]
  hidden_B1D = jnp.take_along_axis(out.hidden_BTD, last_B11, axis=1)
  logits_B1V = model.trunk.logits(params["lm"], hidden_B1D)
  state = state.replace(
    cache=tuple(map(cache.fill, state.cache, out.rows)),
    head_caches=head_caches,
    tap_BD=jnp.take_along_axis(out.tap_BTD, last_B11, axis=1)[:, 0],
  )
  root = Tree.root()
  noise_B1V = None
  if spec.stages.is_sampled:
    noise_B1V = noise.position_noise(
      state.controls.keys_B, state.length_B[:, None] + 1, logits_B1V.shape[-1]
    )
  final_B1V = _final_at_nodes(
    spec, tables, state, root, state.root_B[:, None], logits_B1V
  )
  tokens_B1 = jnp.argmax(choose(state.controls, final_B1V, noise_B1V), axis=-1)
  state = _advance(
    tables,
    state,
    tokens_B1,
    token_logprobs(logits_B1V, tokens_B1),
    jnp.ones_like(state.length_B),
    jnp.zeros_like(tokens_B1),
    jnp.zeros_like(state.length_B),
  )
  if not model.is_chain or not state.head_caches:
    return state
  # A chain is given the first token too.
  head_caches, reached_BMD = sequential.fill(
    model, params, state.head_caches, out.tap_BTD, state.tokens_BS,
    HeadContext(positions_BT, mask), state.length_B,
  )  # fmt: skip
  return state.replace(head_caches=head_caches, reached_BMD=reached_BMD)


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
  noise_BJV = noise_behind_root(spec, state)
  drafts = propose(spec, params, tables, state, noise_BJV)
  tokens_BQ, is_valid_BQ = fill_tree(spec.tree, state.root_B, drafts)
  if spec.drafter == "idle" and drafts is not None:
    # Nobody looks at these drafts, and the compiler must not know; it does see
    # through optimization barriers. No candidate is below 0.
    is_never_B = jnp.any(drafts.candidates_BMC < 0, axis=(1, 2))
    tokens_BQ = jnp.where(is_never_B[:, None], 0, tokens_BQ)
  out, logits_BQV = run_tree(spec, params, state, tokens_BQ)
  verdict = verify(
    spec, tables, state, tokens_BQ, is_valid_BQ, logits_BQV, drafts, noise_BJV
  )
  return commit(
    spec, params, tables, state, is_valid_BQ, out, logits_BQV, verdict
  )


def run_tree(
  spec: Spec, params: Any, state: DecodeState, tokens_BQ: jax.Array
) -> tuple[TrunkOutput, jax.Array]:
  """Runs the trunk over all nodes; returns its output and logits [B, Q, V]."""
  model, tree = spec.model, spec.tree
  out = model.apply_trunk(
    params["lm"],
    tokens_BQ,
    state.length_B[:, None] + jnp.asarray(tree.depth_Q),
    masks.tree(jnp.asarray(tree.ancestors_QQ), state.length_B),
    state.cache,
  )
  return out, model.trunk.logits(params["lm"], out.hidden_BTD)


def commit(
  spec: Spec,
  params: Any,
  tables: Tables,
  state: DecodeState,
  is_valid_BQ: jax.Array,
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
    is_valid_BQ: False for a node that is no draft.
    out: of `run_tree`.
    logits_BQV: of `run_tree`.
    verdict: from `verify`.

  Returns:
    The next state.
  """
  path_BJ = verdict.path_BJ
  # Nothing is added: no token is below 0. But now the place of the new rows
  # depends on what was read from the caches, so that the compiler writes them
  # where they lie. A path that is the root alone it would know beforehand, and
  # copy every cache in order to write it early.
  start_B = state.length_B + (verdict.tokens_BJ[:, 0] < 0)
  head_caches, reached_BMD = state.head_caches, state.reached_BMD
  if not spec.model.is_chain:
    head_caches = heads_drafter.commit(
      spec.model,
      params["heads"],
      head_caches,
      out.tap_BTD,
      state.length_B[:, None] + jnp.asarray(spec.tree.depth_Q),
      path_BJ,
      start_B,
    )
  elif reached_BMD is not None:
    head_caches, reached_BMD = sequential.commit(
      spec.model,
      params,
      head_caches,
      reached_BMD,
      jnp.take_along_axis(out.tap_BTD, path_BJ[..., None], axis=1),
      verdict.tokens_BJ,
      verdict.n_tokens_B,
      start_B,
    )
  last_B11 = path_BJ[:, -1][:, None, None]
  state = state.replace(
    cache=tuple(
      cache.commit(c, rows, path_BJ, start_B)
      for c, rows in zip(state.cache, out.rows, strict=True)
    ),
    head_caches=head_caches,
    reached_BMD=reached_BMD,
    # A block that was cut belongs to a row that has finished, whose drafts
    # nobody reads.
    tap_BD=jnp.take_along_axis(out.tap_BTD, last_B11, axis=1)[:, 0],
  )
  logits_BJV = jnp.take_along_axis(logits_BQV, path_BJ[..., None], axis=1)
  # The token after node j of the path is its node j + 1, while that is one.
  following_BJ = jnp.roll(path_BJ, -1, axis=1)
  n_accepted_B1 = verdict.n_tokens_B[:, None] - 1
  is_accepted_BJ = jnp.arange(path_BJ.shape[1]) < n_accepted_B1
  return _advance(
    tables,
    state,
    verdict.tokens_BJ,
    token_logprobs(logits_BJV, verdict.tokens_BJ),
    verdict.n_tokens_B,
    jnp.where(is_accepted_BJ, following_BJ, 0),
    jnp.sum(is_valid_BQ[:, 1:], axis=-1),
  )


def noise_behind_root(spec: Spec, state: DecodeState) -> jax.Array | None:
  """Returns the noise of the positions after the root.

  The token after a node of depth d, and a draft of depth d + 1, read [:, d].
  None in programs that are greedy or flip coins instead.
  """
  flips_coins = not spec.verifier.shares_noise and spec.tree.max_depth > 0
  if not spec.stages.is_sampled or flips_coins:
    return None
  n = 1 + max(spec.tree.max_depth, spec.drafting_heads)
  positions_BJ = state.length_B[:, None] + 1 + jnp.arange(n)
  return noise.position_noise(
    state.controls.keys_B, positions_BJ, spec.model.config.vocab_size
  )


def _final_at_nodes(spec, tables, state, tree, tokens_BQ, logits_BQV):
  return final_logits(
    spec.stages,
    tables,
    state.controls,
    state.seen_BV,
    history.at_nodes(state, tables.automaton, tree, tokens_BQ),
    logits_BQV,
  )


def verify(
  spec: Spec,
  tables: Tables,
  state: DecodeState,
  tokens_BQ: jax.Array,
  is_valid_BQ: jax.Array,
  logits_BQV: jax.Array,
  drafts: Drafts | None,
  noise_BJV: jax.Array | None,
) -> verifiers.Verdict:
  """Decides which path of the tree stands, and the token after it.

  Args:
    spec: the program.
    tables: EOS ids and grammars.
    state: what was committed before.
    tokens_BQ: of all nodes.
    is_valid_BQ: False for a node that is no draft.
    logits_BQV: of the model, after each node.
    drafts: what the tree was filled with.
    noise_BJV: from `noise_behind_root`.

  Returns:
    The verdict, before anything is cut.
  """
  tree, controls = spec.tree, state.controls
  final_BQV = _final_at_nodes(spec, tables, state, tree, tokens_BQ, logits_BQV)
  # Greedy rows and coupled noise: what plain decoding would choose there.
  noise_BQV = None if noise_BJV is None else noise_BJV[:, tree.depth_Q]
  targets_BQ = jnp.argmax(choose(controls, final_BQV, noise_BQV), axis=-1)
  matched = verifiers.match(tree, tokens_BQ, is_valid_BQ, targets_BQ)
  is_root = tree.max_depth == 0
  if not spec.stages.is_sampled or spec.verifier.shares_noise or is_root:
    return matched
  conditionals = spec.verifier.judge(
    tree,
    tokens_BQ,
    is_valid_BQ,
    jax.nn.softmax(final_BQV, axis=-1),
    None if drafts is None else drafts.probs_BMV,
  )
  sampled = verifiers.sample(
    tree, tokens_BQ, conditionals,
    *noise.coins(controls.keys_B, state.length_B, tree.size),
  )  # fmt: skip

  def pick(a: jax.Array, b: jax.Array) -> jax.Array:
    is_sampled_B = controls.temperature_B > 0
    return jnp.where(
      is_sampled_B[:, None] if a.ndim == 2 else is_sampled_B, a, b
    )

  return jax.tree.map(pick, sampled, matched)


def _advance(
  tables: Tables,
  state: DecodeState,
  tokens_BJ: jax.Array,
  logprobs_BJ: jax.Array,
  n_tokens_B: jax.Array,
  origins_BJ: jax.Array,
  n_proposed_B: jax.Array,
) -> DecodeState:
  """Commits a block after the root; its rows are in the caches already.

  Whatever counts, counts only what is left after the block was cut.

  Args:
    tables: EOS ids and grammars.
    state: what was committed before.
    tokens_BJ: the block.
    logprobs_BJ: its log-probabilities under the model.
    n_tokens_B: how many of its tokens count.
    origins_BJ: the node that proposed each; 0 for the last one.
    n_proposed_B: drafts that the pass verified.

  Returns:
    The state after the block.
  """
  stops = state.controls.stop_sequences
  is_stop_BJ = None
  if stops is not None:
    longest = stops.tokens_BWL.shape[-1]
    joined_BX = jnp.concatenate(
      [history.recent_tokens(state, longest), tokens_BJ], axis=1
    )
    window_JL = (
      1 + jnp.arange(tokens_BJ.shape[1])[:, None] + jnp.arange(longest)
    )
    is_stop_BJ = has_ended(stops, joined_BX[:, window_JL])
  n_B, finish_B = endings.truncate(
    tokens_BJ,
    n_tokens_B,
    tables.eos_ids_E,
    is_stop_BJ,
    state.controls.max_new_B - state.n_tokens_B,
    state.finish_B,
  )
  is_new_BJ = jnp.arange(tokens_BJ.shape[1]) < n_B[:, None]
  counts_BV, grammar_B = state.counts_BV, state.grammar_B
  if counts_BV is not None:
    rows_B1 = jnp.arange(tokens_BJ.shape[0])[:, None]
    counts_BV = counts_BV.at[rows_B1, tokens_BJ].add(
      is_new_BJ.astype(counts_BV.dtype)
    )
  if tables.automaton is not None:
    for j in range(tokens_BJ.shape[1]):
      following_B = automata.advance(
        tables.automaton, grammar_B[:, None], tokens_BJ[:, j, None]
      )[:, 0]
      grammar_B = jnp.where(is_new_BJ[:, j], following_B, grammar_B)
  moved_B = n_B > 0
  n_passes_B = state.n_passes_B + moved_B
  total_B = state.n_proposed_B + jnp.where(moved_B, n_proposed_B, 0)
  start_B = state.length_B + 1

  def write(buffer_BS: jax.Array, block: jax.Array) -> jax.Array:
    block = block[:, None] if block.ndim == 1 else block
    return write_block(
      buffer_BS, jnp.broadcast_to(block, tokens_BJ.shape), start_B
    )

  return state.replace(
    tokens_BS=write(state.tokens_BS, tokens_BJ),
    logprobs_BS=write(state.logprobs_BS, logprobs_BJ),
    passes_BS=write(state.passes_BS, n_passes_B),
    proposed_BS=write(state.proposed_BS, total_B),
    origins_BS=write(state.origins_BS, origins_BJ),
    length_B=state.length_B + n_B,
    finish_B=finish_B,
    n_passes_B=n_passes_B,
    n_proposed_B=total_B,
    counts_BV=counts_BV,
    grammar_B=grammar_B,
  )
