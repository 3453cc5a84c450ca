"""How fast texts came, in words."""

from collections.abc import Sequence

from mtpjax import decode
from mtpjax.api.loaded import Decoding, Generation


def speed(generations: Sequence[Generation], reached: Decoding | None) -> str:
  """Returns what a line says of how fast texts came.

  Args:
    generations: the texts.
    reached: of their last chunk of passes; None without any.

  Returns:
    Tokens and, unless the prompts' own passes were all, tokens per pass and
    tokens/s of the others, compilation not counted.
  """
  tokens = sum(len(generation.ids) for generation in generations)
  text = f"{tokens:,} tokens"
  per_pass = decode.tokens_per_pass(generations)
  if per_pass is not None:
    text += f", {per_pass:.2f} tokens per pass"
  if reached is not None and reached.tokens:
    text += f", {reached.tokens / reached.secs:,.1f} tokens/s"
  return text
