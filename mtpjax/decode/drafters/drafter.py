"""What every drafter is: a small frozen value with one protocol."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax

from mtpjax.decode.drafters.drafts import Candidates, Drafts
from mtpjax.decode.tree import Tree
from mtpjax.heads import MultiTokenModel
from mtpjax.model import Placement


class Prompts(NamedTuple):
  """Prompts that have been run, their first token committed.

  Attributes:
    tap_BTD: tapped states of the prompts.
    placement: of their rows.
    tokens_BS: the texts, the first token after each prompt included.
    prompt_length_B: tokens of each prompt.
    length_B: position of the first token after it, the root.
  """

  tap_BTD: jax.Array
  placement: Placement
  tokens_BS: jax.Array
  prompt_length_B: jax.Array
  length_B: jax.Array


class Committed(NamedTuple):
  """What a pass has committed.

  Attributes:
    tap_BQD: tapped states of all nodes of the tree.
    positions_BQ: their positions.
    root_B: the last token that was committed before.
    path_BJ: the accepted path, root first; the last node is repeated.
    tokens_BJ: the tokens after its nodes.
    n_tokens_B: how many of these count.
    length_B: position of the root; see `model.cache.after_reads`.
  """

  tap_BQD: jax.Array
  positions_BQ: jax.Array
  root_B: jax.Array
  path_BJ: jax.Array
  tokens_BJ: jax.Array
  n_tokens_B: jax.Array
  length_B: jax.Array


class Context(NamedTuple):
  """What a drafter may look at.

  Attributes:
    model: the model.
    params: from `decode_params`.
    tree: to be filled.
    tokens_BS: the texts; what lies beyond the root means nothing.
    length_B: position of the root, the last committed token.
    root_B: the root.
    draws: drafts are to come with the distributions they were drawn from.
    rank: (depth - 1 of the first, logits [B, m, V], candidates per depth) ->
      the `Candidates` of m depths, through the logits pipeline.
  """

  model: MultiTokenModel
  params: Any
  tree: Tree
  tokens_BS: jax.Array
  length_B: jax.Array
  root_B: jax.Array
  draws: bool
  rank: Callable[[int, jax.Array, int], Candidates]


@dataclasses.dataclass(frozen=True)
class Drafter:
  """Proposes the tokens of a tree, and keeps what it needs for that.

  A drafter of your own is a subclass in a file of its own, a line in
  `DRAFTERS` and, to have a name on the command line, one in `modes.MODES`.
  What it keeps from pass to pass is its *carry*: a tree of arrays whose first
  axis is the request. Nobody else looks into it; requests that are admitted
  have rows of their own.

  Attributes:
    keeps_nothing: the carry is empty, and prompts can be run without knowing
      the drafter.
  """

  keeps_nothing: ClassVar[bool] = True

  @property
  def keeper(self) -> "Drafter":
    """The drafter whose carry this one reads, mostly itself."""
    return self

  def check(self, model: MultiTokenModel, tree: Tree) -> None:
    """Raises UserError for a tree that this drafter cannot fill."""
    del model, tree

  def n_ranked(self, tree: Tree) -> int:
    """Depths that `Context.rank` is asked for."""
    return tree.max_depth

  def empty(self, model: MultiTokenModel, batch: int, positions: int) -> Any:
    """Returns the carry of requests that have not begun.

    Args:
      model: the model.
      batch: requests B.
      positions: of the longest text, with room for a tree.
    """
    del model, batch, positions
    return ()

  def prefill(
    self, model: MultiTokenModel, params: Any, carry: Any, prompts: Prompts
  ) -> Any:
    """Returns the carry after the prompts and their first token."""
    del model, params, prompts
    return carry

  def propose(self, context: Context, carry: Any) -> Drafts:
    """Returns a token for every node of `context.tree`."""
    raise NotImplementedError

  def commit(
    self, model: MultiTokenModel, params: Any, carry: Any, committed: Committed
  ) -> Any:
    """Returns the carry after a pass."""
    del model, params, committed
    return carry
