"""Model FLOPs per token, the numerator of MFU."""

from mtpjax.heads.kinds import kind_of
from mtpjax.heads.multi_token import MultiTokenModel, count_values


def count_params(model: MultiTokenModel) -> dict[str, int]:
  """Returns the number of parameters of "lm" and of "heads"."""
  abstract = model.abstract()
  return {
    "lm": count_values(abstract["lm"]),
    "heads": count_values(abstract.get("heads")),
  }


def train_flops_per_token(
  model: MultiTokenModel, row_length: int, with_heads: bool = True
) -> float:
  """Counts the FLOPs of a forward and backward pass, per token.

  6 for every weight that multiplies a token (the unembedding once per
  offset), and 6 L T N H for attention scores over a causal row (PaLM, Chowdhery
  et al. 2022, appendix B, halved for causality). Work repeated by
  rematerialisation is not counted.

  Args:
    model: the model.
    row_length: tokens T of a row; documents inside are not distinguished.
    with_heads: count the extra heads too.

  Returns:
    FLOPs per token.
  """
  c = model.config
  abstract = model.abstract()
  lm = abstract["lm"]
  if model.foreign_trunk is None:
    weights = count_values(lm["layers"])
  else:
    # All but the tables, of which the unembedding is counted below.
    tables = 1 if model.foreign_trunk.is_embedding else 2
    weights = count_values(lm["module"]) - tables * c.d_model * c.vocab_size
  layers, offsets = model.trunk_layers, 1
  if with_heads and model.heads.n_extra:
    weights += count_values(abstract["heads"])
    offsets += model.heads.n_extra
    layers += model.heads.n_extra * kind_of(model.heads).n_attention_layers
  weights += offsets * c.d_model * c.vocab_size
  attention = 6 * layers * row_length * c.n_attention_heads * c.d_head
  return 6.0 * weights + attention
