"""Sequential heads among the weights, as DeepSeek-V3 publishes its modules.

Of a trunk of L layers module k (the head of offset k + 1) is the layer
L + k - 1: the tensors of a layer, two norms, the projection that joins what
they give, and copies of what it shares with the model:

  model.layers.{L + k - 1}.enorm.weight, .hnorm.weight, .eh_proj.weight
  model.layers.{L + k - 1}.embed_tokens.weight, .shared_head.norm.weight,
    .shared_head.head.weight

Engines that go by this layout count the modules in different fields of
config.json: num_nextn_predict_layers, and in transformers num_mtp_layers.
"""

from typing import Any

from mtpjax import config as config_lib
from mtpjax.checkpoint.convert.containers.tensors import Tensors, are_equal
from mtpjax.checkpoint.convert.disassemble import (
  StoredTensor,
  by_path,
  disassemble,
)
from mtpjax.checkpoint.convert.formats.hf_names import HF_NAMES, LAYER_NAMES
from mtpjax.checkpoint.convert.layout import Leaf, block_leaves, stored_shape
from mtpjax.config.published import Fields
from mtpjax.errors import UserError

_COUNTS = ("num_nextn_predict_layers", "num_mtp_layers")
_KINDS = "mtp_layer_types"
FIELDS = (*_COUNTS, _KINDS)
_NAMES = {
  "embedding_norm/scale": "model.layers.{i}.enorm.weight",
  "hidden_norm/scale": "model.layers.{i}.hnorm.weight",
  "projection/kernel": "model.layers.{i}.eh_proj.weight",
}
_COPIES = {
  "embedding": "model.layers.{i}.embed_tokens.weight",
  "final_norm/scale": "model.layers.{i}.shared_head.norm.weight",
  "unembedding": "model.layers.{i}.shared_head.head.weight",
}


def counts(fields: Fields) -> dict[str, int]:
  """Returns how many heads a config.json counts, by the names of fields."""
  return {
    name: fields.integer(name, least=0)
    for name in _COUNTS
    if fields.get(name) is not None
  }


def read_heads(fields: Fields, model: config_lib.Model) -> config_lib.Heads:
  """Returns the heads that a config.json counts; `Heads.none()` without.

  Raises:
    UserError: its counts contradict each other, or the layers of the heads are
      of another kind than the model's.
  """
  found = set(counts(fields).values())
  if len(found) > 1:
    raise fields.error(
      _COUNTS[0],
      f"contradicts {_COUNTS[1]} {fields.get(_COUNTS[1])}; leave out the one "
      "that is wrong",
    )
  n = found.pop() if found else 0
  if not n:
    return config_lib.Heads.none()
  if fields.texts(_KINDS) not in (None, fields_of(model, n)[_KINDS]):
    raise fields.error(
      _KINDS, f"is not supported; the model's layers are {_kind(model)}"
    )
  return config_lib.Heads(
    kind="sequential",
    tap="last",
    offsets=tuple(range(1, n + 2)),
    matched=False,
  )


def fields_of(model: config_lib.Model, n: int) -> dict[str, Any]:
  """Returns the fields of config.json that speak of n modules."""
  # transformers asks for the kinds where a family has them for its layers.
  return dict.fromkeys(_COUNTS, n) | {_KINDS: [_kind(model)] * n}


def _kind(model: config_lib.Model) -> str:
  return "sliding_attention" if model.sliding_window else "full_attention"


def leaves(model: config_lib.Model, n_layers: int) -> list[Leaf]:
  """Lists the parameters of sequential heads, params["heads"].

  Args:
    model: which parameters a layer has.
    n_layers: of the trunk, L.
  """
  return [
    Leaf(path, name, n_in=int(path == "projection/kernel"), first=n_layers)
    for path, name in _NAMES.items()
  ] + block_leaves(model, LAYER_NAMES, "layer", first=n_layers)


def tensors(
  model: config_lib.Model, lm_params: Any, heads_params: Any
) -> list[StoredTensor]:
  """Lists the tensors of sequential heads, one head after the other."""
  shared = by_path(lm_params)
  n_layers = shared["layers/attention_norm/scale"].shape[0]
  own = disassemble(leaves(model, n_layers), heads_params)
  n = heads_params["hidden_norm"]["scale"].shape[0]
  found: list[StoredTensor] = []
  for k in range(n):
    for path, name in _COPIES.items():
      # A tied unembedding is stored as the embedding is.
      is_matrix = path == "unembedding" and path in shared
      array = shared[path if path in shared else "embedding"]
      leaf = Leaf(path, _numbered(name, n_layers + k), n_in=int(is_matrix))
      shape = stored_shape(leaf, array.shape)
      found.append(StoredTensor(leaf.name, shape, leaf, array))
    found += [tensor for tensor in own if tensor.index == k]
  return found


def copies(
  model: config_lib.Model, n_layers: int, heads: config_lib.Heads
) -> dict[str, str]:
  """Returns the tensors that modules share, each by the name of its copy."""
  originals = dict(HF_NAMES)
  if model.tied_embeddings:
    originals["unembedding"] = originals["embedding"]
  return {
    _numbered(name, n_layers + k): originals[path]
    for k in range(heads.n_extra)
    for path, name in _COPIES.items()
  }


def require_copies(stored: Tensors, originals: dict[str, str]) -> None:
  """Raises UserError for a module with an output of its own."""
  there = set(stored.names())
  for name, original in originals.items():
    if {name, original} <= there and not are_equal(stored, name, original):
      raise UserError(
        f"{stored.source}: {name} is not {original}; heads with parts of their "
        "own in place of the model's are not supported"
      )


def _numbered(name: str, i: int) -> str:
  return name.replace("{i}", str(i))
