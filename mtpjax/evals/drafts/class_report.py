"""What heads are worth on prompts of several classes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mtpjax import decode
from mtpjax.decode.drafters import Drafter
from mtpjax.evals.drafts.candidate_ranks import candidate_ranks
from mtpjax.heads import MultiTokenModel

_BATCH = 8
_CHUNK_PASSES = 64


def decode_texts(
  model: MultiTokenModel,
  decode_params: Any,
  tree: decode.Tree,
  requests: Sequence[decode.Request],
  eos_ids: Sequence[int],
  drafter: Drafter | None = None,
) -> list[decode.Result]:
  """Decodes requests with one tree, filled by the heads if nobody else does."""
  stages = decode.Stages.of(requests)
  spec = (
    decode.Spec(model, tree, stages)
    if drafter is None
    else decode.Spec(model, tree, stages, drafter)
  )
  results: dict[int, decode.Result] = {}
  for latest in decode.generate(
    [spec], decode_params, requests, eos_ids, min(_BATCH, len(requests)),
    _CHUNK_PASSES,
  ):  # fmt: skip
    results |= latest
  return [results[i] for i in range(len(requests))]


def report_classes(
  model: MultiTokenModel,
  params: Any,
  decode_params: Any,
  classes: Mapping[str, Sequence[decode.Request]],
  trees: Mapping[str, decode.Tree],
  eos_ids: Sequence[int],
  on_decoded: Callable[[int], Any] | None = None,
) -> list[dict[str, Any]]:
  """Ranks the model's own tokens among the heads' drafts, and decodes.

  Args:
    model: the model; it has a head of offset 2.
    params: {"lm": ..., "heads": ...}, stacked.
    decode_params: the same, see `decode.decode_params`.
    classes: requests by class, greedy.
    trees: by name, to decode with.
    eos_ids: ids that end a text.
    on_decoded: called with how often all texts of a class have been decoded so
      far, which for each class happens plainly and with every tree.

  Returns:
    Per class {"class", "tokens"; "top_1_by_offset" and "top_5_by_offset": of
    offsets 2, 3, ..., how often the token that the model itself chose is the
    head's best, or among its best five; "tokens_per_pass": by tree, and
    "outputs_identical": to plain decoding, with every tree}. None stands for a
    share of no tokens, and for tokens per pass where no text took a pass after
    its prompt's own.
  """
  depths = model.heads.chain_length
  rows = []
  n_decoded = 0

  def decode_with(
    tree: decode.Tree, requests: Sequence[decode.Request]
  ) -> list[decode.Result]:
    nonlocal n_decoded
    results = decode_texts(model, decode_params, tree, requests, eos_ids)
    n_decoded += 1
    if on_decoded is not None:
      on_decoded(n_decoded)
    return results

  for kind, requests in classes.items():
    plain = decode_with(decode.Tree.root(), requests)
    ranks = candidate_ranks(model, params, requests, plain, depths)
    known = [
      [rank for text_NM in ranks for rank in text_NM[:, d] if rank >= 0]
      for d in range(depths)
    ]
    tokens_per_pass: dict[str, float | None] = {}
    is_identical = True
    for name, tree in trees.items():
      results = decode_with(tree, requests)
      tokens_per_pass[name] = decode.tokens_per_pass(results)
      is_identical &= [r.ids for r in results] == [r.ids for r in plain]
    rows.append(
      {
        "class": kind,
        "tokens": sum(len(r.ids) for r in plain),
        "top_1_by_offset": [_share(of, 1) for of in known],
        "top_5_by_offset": [_share(of, 5) for of in known],
        "tokens_per_pass": tokens_per_pass,
        "outputs_identical": is_identical,
      }
    )
  return rows


def _share(ranks: Sequence[int], below: int) -> float | None:
  return sum(rank < below for rank in ranks) / len(ranks) if ranks else None
