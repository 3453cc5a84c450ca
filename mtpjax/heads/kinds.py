"""Kinds of heads by name, and what each asks of its settings."""

from typing import Any

from mtpjax import config as config_lib
from mtpjax.errors import UserError
from mtpjax.heads.block import BlockHead
from mtpjax.heads.linear import LinearHead
from mtpjax.heads.medusa import MedusaHead
from mtpjax.heads.nothing import NoHead
from mtpjax.heads.sequential import SequentialHead

# A kind is a Flax module of (config, heads) that maps (hidden_BTD, context) to
# hidden states, with the class attributes
#   wiring               how heads of it are strung over a text
#   keeps_cache          it has keys and values of its own: methods `rows`
#                        (parallel) or `with_rows` (chain)
#   n_attention_layers   for the count of FLOPs
#   options              fields of `config.Heads` that only some kinds have
#   published            how `export hf` writes heads of it: "medusa" (beside
#                        the model) or "deepseek" (as layers); not set: not
# and, if it asks something of its settings, a static method `check(heads)`.
HEADS: dict[str, Any] = {
  "block": BlockHead,
  "linear": LinearHead,
  "medusa": MedusaHead,
  "sequential": SequentialHead,
  "none": NoHead,
}
_OPTIONS = {"n_layers": 1, "unembedding": "shared"}


def kind_of(heads: config_lib.Heads) -> Any:
  """Returns the class of a kind of head.

  Raises:
    UserError: it is not in `HEADS`, or is given settings of other kinds.
  """
  if heads.kind not in HEADS:
    raise UserError(
      f"heads.kind: {heads.kind!r} is not one of {', '.join(HEADS)}"
    )
  kind = HEADS[heads.kind]
  options = getattr(kind, "options", ())
  for name, plain in _OPTIONS.items():
    if name not in options and getattr(heads, name) != plain:
      takes = [k for k, v in HEADS.items() if name in getattr(v, "options", ())]
      raise UserError(
        f"heads.{name}: {getattr(heads, name)!r} is for heads.kind "
        f"{', '.join(takes)}, this is {heads.kind}; leave it {plain!r}"
      )
  if hasattr(kind, "check"):
    kind.check(heads)
  return kind
