"""Parameters out, to a folder as Hugging Face publishes them.

The files are written tensor by tensor; the `safetensors` library would want
all tensors of a file in memory. A file is the length of its header (8 bytes,
little-endian), the header (JSON: dtype, shape and offsets by name), the data.
"""

import dataclasses
import json
import math
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mtpjax.checkpoint.convert.assemble import stored_shape
from mtpjax.checkpoint.convert.hugging_face import HF_NAMES
from mtpjax.checkpoint.convert.layout import Leaf, block_leaves, lm_leaves

_DTYPES = {"float64": "F64", "float32": "F32", "bfloat16": "BF16"}

# DeepSeek-V3 publishes its modules as further layers: beside the layer's own
# tensors these, and copies of what a module shares with the model.
_CHAIN_NAMES = {
  "embedding_norm/scale": "model.layers.{i}.enorm.weight",
  "hidden_norm/scale": "model.layers.{i}.hnorm.weight",
  "projection/kernel": "model.layers.{i}.eh_proj.weight",
}
_CHAIN_COPIES = {
  "embedding": "model.layers.{i}.embed_tokens.weight",
  "final_norm/scale": "model.layers.{i}.shared_head.norm.weight",
  "unembedding": "model.layers.{i}.shared_head.head.weight",
}


@dataclasses.dataclass(frozen=True)
class _Tensor:
  """A tensor to be written, taken from a leaf when its turn comes."""

  name: str
  shape: tuple[int, ...]
  leaf: Leaf
  array: jax.Array
  index: int  # of the first axis of a stacked leaf

  def size(self) -> int:
    return math.prod(self.shape)

  def read(self, dtype: Any) -> np.ndarray:
    """Returns the values as they are stored."""
    # One layer comes to the host at a time.
    one = self.array[self.index] if self.leaf.is_stacked else self.array
    ours = np.asarray(one)
    if self.leaf.n_in:
      ours = ours.reshape(self.shape[::-1]).T
    return np.ascontiguousarray(ours.reshape(self.shape), dtype)


def write_hf_weights(
  folder: pathlib.Path,
  model: Any,
  lm_params: Any,
  dtype: str,
  max_shard_bytes: int,
  chain_params: Any = None,
  on_written: Callable[[int], None] | None = None,
) -> int:
  """Writes model.safetensors, or shards of it and their index.

  Args:
    folder: where; it exists.
    model: the `config.Model` of the parameters.
    lm_params: those of the next-token model, sharded or not.
    dtype: to write them in.
    max_shard_bytes: the most bytes of tensors in a file; a larger tensor has a
      file of its own.
    chain_params: those of sequential heads, stacked, which become layers after
      the model's own, as DeepSeek-V3 publishes them; None for none.

    on_written: called with the number of values written so far.

  Returns:
    The number of values written.
  """
  tensors = _list_tensors(lm_leaves(model, HF_NAMES), lm_params)
  if chain_params is not None:
    tensors += _list_chain(model, lm_params, chain_params)
  width = jnp.dtype(dtype).itemsize
  shards = _shards(tensors, max_shard_bytes // width)
  names = ["model.safetensors"]
  if len(shards) > 1:
    n = len(shards)
    names = [f"model-{i + 1:05}-of-{n:05}.safetensors" for i in range(n)]
    weight_map = {
      tensor.name: name
      for name, shard in zip(names, shards, strict=True)
      for tensor in shard
    }
    size = width * sum(tensor.size() for tensor in tensors)
    index = {"metadata": {"total_size": size}, "weight_map": weight_map}
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
  n_written, n_values = 0, sum(tensor.size() for tensor in tensors)

  def tell(tensor: _Tensor) -> None:
    nonlocal n_written
    n_written += tensor.size()
    if on_written is not None:
      on_written(n_written)

  for name, shard in zip(names, shards, strict=True):
    _write(folder / name, shard, dtype, tell)
  return n_values


def _by_path(params: Any) -> dict[str, jax.Array]:
  return {
    jax.tree_util.keystr(path, simple=True, separator="/"): array
    for path, array in jax.tree_util.tree_leaves_with_path(params)
  }


def _list_tensors(leaves: Sequence[Leaf], params: Any) -> list[_Tensor]:
  """Lists all tensors: the embedding, layer by layer, what follows them."""
  arrays = _by_path(params)
  assert arrays.keys() == {leaf.path for leaf in leaves}
  found: dict[bool, list[_Tensor]] = {True: [], False: []}
  for leaf in leaves:
    array = arrays[leaf.path]
    shape = stored_shape(leaf, array.shape)
    found[leaf.is_stacked] += [
      _Tensor(name, shape, leaf, array, i)
      for i, name in enumerate(leaf.names(array.shape))
    ]
  first, *rest = found[False]
  return [first, *sorted(found[True], key=lambda t: t.index), *rest]


def _list_chain(model: Any, lm_params: Any, chain_params: Any) -> list[_Tensor]:
  """Lists the tensors of sequential heads, one head after the other."""
  shared, own = _by_path(lm_params), _by_path(chain_params)
  n_layers = shared["layers/attention_norm/scale"].shape[0]
  of_layer = {
    path.removeprefix("layers/"): name
    for path, name in HF_NAMES.items()
    if path.startswith("layers/")
  }
  leaves = [
    Leaf(path, name, n_in=int(path == "projection/kernel"))
    for path, name in _CHAIN_NAMES.items()
  ] + block_leaves(model, of_layer, "layer")
  assert own.keys() == {leaf.path for leaf in leaves}
  found: list[_Tensor] = []
  for k in range(own["hidden_norm/scale"].shape[0]):
    layer = str(n_layers + k)
    for path, name in _CHAIN_COPIES.items():
      # A tied unembedding is stored as the embedding is.
      is_matrix = path == "unembedding" and path in shared
      leaf = Leaf(path, name.replace("{i}", layer), n_in=int(is_matrix))
      array = shared[path if path in shared else "embedding"]
      shape = stored_shape(leaf, array.shape)
      found.append(_Tensor(leaf.name, shape, leaf, array, 0))
    found += [
      _Tensor(
        leaf.name.replace("{i}", layer),
        stored_shape(leaf, own[leaf.path].shape),
        leaf,
        own[leaf.path],
        k,
      )
      for leaf in leaves
    ]
  return found


def _shards(tensors: Sequence[_Tensor], most: int) -> list[list[_Tensor]]:
  """Cuts the list so that each part has at most so many values."""
  shards: list[list[_Tensor]] = [[]]
  room = most
  for tensor in tensors:
    if shards[-1] and tensor.size() > room:
      shards.append([])
      room = most
    shards[-1].append(tensor)
    room -= tensor.size()
  return shards


def _write(
  path: pathlib.Path,
  tensors: Sequence[_Tensor],
  dtype: str,
  tell: Callable[[_Tensor], None],
) -> None:
  header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
  end = 0
  for tensor in tensors:
    start, end = end, end + tensor.size() * jnp.dtype(dtype).itemsize
    header[tensor.name] = {
      "dtype": _DTYPES[dtype],
      "shape": tensor.shape,
      "data_offsets": (start, end),
    }
  text = json.dumps(header, separators=(",", ":")).encode()
  text += b" " * (-len(text) % 8)  # the data begins aligned
  with path.open("wb") as file:
    file.write(len(text).to_bytes(8, "little"))
    file.write(text)
    for tensor in tensors:
      values = tensor.read(jnp.dtype(dtype))
      file.write(values.reshape(-1).view(np.uint8).data)
      tell(tensor)
