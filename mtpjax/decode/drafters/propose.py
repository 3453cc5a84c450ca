"""What a program drafts, and the tree it fills."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mtpjax.decode import history, noise
from mtpjax.decode.drafters import heads, lookup, sequential
from mtpjax.decode.drafters.drafts import Drafts
from mtpjax.decode.sampling import Tables, choose, final_logits
from mtpjax.decode.spec import Spec
from mtpjax.decode.state import DecodeState
from mtpjax.decode.tree import Tree


def propose(
  spec: Spec,
  params: Any,
  tables: Tables,
  state: DecodeState,
  noise_BJV: jax.Array | None,
) -> Drafts | None:
  """Runs the drafter of a program.

  Args:
    spec: the program.
    params: from `decode_params`.
    tables: EOS ids and grammars.
    state: what is committed.
    noise_BJV: from `step.noise_behind_root`; None where drafts share none.

  Returns:
    Drafts of each depth; None if the program has none.
  """
  depths = spec.drafting_heads
  if spec.drafter == "lookup":
    return lookup.propose(
      state.tokens_BS,
      state.length_B,
      spec.lookup_ngram,
      spec.tree.max_depth,
      spec.model.config.vocab_size if spec.draws_apart else None,
    )
  if not depths:
    return None
  noise_BMV = noise_BJV
  if spec.draws_apart:
    noise_BMV = noise.draft_noise(
      state.controls.keys_B, state.length_B, depths,
      spec.model.config.vocab_size,
    )  # fmt: skip
  histories = history.of_drafts(state, depths)

  def rank(first: int, logits_BMV: jax.Array) -> Drafts:
    """Ranks the candidates of some depths, of which one is the first."""
    at = slice(first, first + logits_BMV.shape[1])
    final_BMV = final_logits(
      spec.stages,
      tables,
      state.controls,
      state.seen_BV,
      jax.tree.map(lambda x: x[:, at], histories),
      logits_BMV,
    )
    scores_BMC, candidates_BMC = jax.lax.top_k(
      choose(
        state.controls,
        final_BMV,
        None if noise_BMV is None else noise_BMV[:, at],
      ),
      spec.tree.width,
    )
    probs_BMV = None
    if spec.draws_apart:
      probs_BMV = jax.nn.softmax(final_BMV, axis=-1)
    return Drafts(candidates_BMC, scores_BMC > -jnp.inf, probs_BMV)

  if not spec.model.is_chain:
    # The last accepted row stands before the root.
    return rank(
      0,
      heads.draft_logits(
        spec.model, params, depths, state.head_caches, state.tap_BD,
        state.length_B - 1,
      ),
    )  # fmt: skip
  ranked: list[Drafts] = []

  def pick(depth: int, logits_B1V: jax.Array) -> jax.Array:
    ranked.append(rank(depth, logits_B1V))
    return ranked[-1].candidates_BMC[:, 0, 0]

  assert state.reached_BMD is not None, "a program keeps the heads it uses"
  sequential.draft_logits(
    spec.model, params, depths, state.head_caches, state.reached_BMD,
    state.length_B, pick,
  )  # fmt: skip
  return jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), *ranked)


def fill_tree(
  tree: Tree, root_B: jax.Array, drafts: Drafts | None
) -> tuple[jax.Array, jax.Array]:
  """Puts drafts into a tree.

  Args:
    tree: the tree.
    root_B: the last committed token.
    drafts: candidates of each depth.

  Returns:
    The tokens of all nodes [B, Q], and whether a node is a draft at all.
  """
  root_B1 = root_B[:, None]
  is_root_B1 = jnp.ones_like(root_B1, bool)
  if drafts is None or not tree.max_depth:
    return root_B1, is_root_B1
  at_Q = (slice(None), tree.depth_Q[1:] - 1, np.asarray(tree.ranks)[1:])
  tokens_BQ = jnp.concatenate([root_B1, drafts.candidates_BMC[at_Q]], axis=1)
  is_valid_BQ = jnp.concatenate([is_root_B1, drafts.is_valid_BMC[at_Q]], axis=1)
  return tokens_BQ, is_valid_BQ
