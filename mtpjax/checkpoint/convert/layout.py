"""How a parameter of ours is stored elsewhere: names, order of axes, rotary.

Elsewhere a linear map is a matrix [out, in], one tensor per layer. Here it is
a kernel [in..., out...] with attention heads as an axis of their own, stacked
over layers:

  layers/attention/query/kernel [L, D, N, H]
  model.layers.{i}.self_attn.q_proj.weight [N H, D], for i below L

Axes: D width, N attention heads, H head width, L layers.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from mtpjax import config as config_lib


@dataclasses.dataclass(frozen=True)
class Leaf:
  """One parameter of ours and the tensors that hold it.

  Attributes:
    path: of the parameter, as "layers/attention/query/kernel".
    name: of the tensor; "{i}" in it says that there is one for each index of
      the first axis (layers, heads).
    n_in: how many axes are the input of a linear map, which is stored as the
      matrix [out, in]; 0: stored as it is.
    pairs: attention heads whose rows are stored in pairs, see
      `rows_from_pairs`; 0: in halves, as here.
    is_flat: all axes (but the stacked one) are stored as one: biases of
      attention heads.
    first: the number in the name of the first layer or head.
  """

  path: str
  name: str
  n_in: int = 0
  pairs: int = 0
  is_flat: bool = False
  first: int = 0

  @property
  def is_stacked(self) -> bool:
    """Whether there is one tensor per index of the first axis."""
    return "{i}" in self.name

  def names(self, shape: tuple[int, ...]) -> list[str]:
    """Returns the names of the tensors of a parameter of this shape."""
    if not self.is_stacked:
      return [self.name]
    numbers = range(self.first, self.first + shape[0])
    return [self.name.replace("{i}", str(i)) for i in numbers]


def lm_leaves(
  model: config_lib.Model, names: Mapping[str, str], paired: bool = False
) -> list[Leaf]:
  """Lists the parameters of a next-token model, as some format stores them.

  Args:
    model: which parameters there are.
    names: the stored name by the path of ours, "{i}" for the layer.
    paired: queries and keys are stored in rotary pairs.

  Returns:
    A leaf for each parameter the model has.
  """
  outer = [
    Leaf("embedding", names["embedding"]),
    Leaf("final_norm/scale", names["final_norm/scale"]),
  ]
  if not model.tied_embeddings:
    outer.append(Leaf("unembedding", names["unembedding"], n_in=1))
  stem = "layers/"
  of_layer = {
    path.removeprefix(stem): name
    for path, name in names.items()
    if path.startswith(stem)
  }
  return outer + block_leaves(model, of_layer, "layers", paired=paired)


def block_leaves(
  model: config_lib.Model,
  names: Mapping[str, str],
  path: str,
  prefix: str = "",
  paired: bool = False,
  first: int = 0,
) -> list[Leaf]:
  """Lists the parameters of stacked layers; see `lm_leaves`.

  Args:
    model: which parameters there are.
    names: the stored name by the path within a layer, as "mlp/up/kernel".
    path: where the layers are, "layers" or "layer" (of a block head).
    prefix: put before each name, as "extra_heads.{i}.".
    paired: queries and keys are stored in rotary pairs.
    first: the number in the name of the first of them.

  Returns:
    A leaf for each parameter of a layer.
  """
  n, k = model.n_attention_heads, model.n_kv_heads

  def leaf(part: str, n_in: int = 0, pairs: int = 0, is_flat=False) -> Leaf:
    return Leaf(
      f"{path}/{part}", prefix + names[part], n_in, pairs * paired, is_flat,
      first,
    )  # fmt: skip

  found = [
    leaf("attention_norm/scale"),
    leaf("attention/query/kernel", 1, n),
    leaf("attention/key/kernel", 1, k),
    leaf("attention/value/kernel", 1),
    leaf("attention/out/kernel", 2),
    leaf("mlp_norm/scale"),
    leaf("mlp/gate/kernel", 1),
    leaf("mlp/up/kernel", 1),
    leaf("mlp/down/kernel", 1),
  ]
  if model.qkv_bias:
    found += [
      leaf("attention/query/bias", pairs=n, is_flat=True),
      leaf("attention/key/bias", pairs=k, is_flat=True),
      leaf("attention/value/bias", is_flat=True),
    ]
  if model.qk_norm:
    found += [
      leaf("attention/query_norm/scale", pairs=1),
      leaf("attention/key_norm/scale", pairs=1),
    ]
  return found


def below(path: str, leaves: Sequence[Leaf]) -> list[Leaf]:
  """Returns leaves of a subtree as those of the tree that has it at `path`."""
  return [
    dataclasses.replace(leaf, path=f"{path}/{leaf.path}") for leaf in leaves
  ]


def stored_shape(leaf: Leaf, shape: tuple[int, ...]) -> tuple[int, ...]:
  """Returns the shape of each tensor of a parameter of this shape."""
  return shape_of_one(leaf, shape[1:] if leaf.is_stacked else shape)


def shape_of_one(leaf: Leaf, one: tuple[int, ...]) -> tuple[int, ...]:
  """Returns `stored_shape` from the shape of one layer or head."""
  if leaf.is_flat:
    return (math.prod(one),)
  if leaf.n_in:
    return math.prod(one[leaf.n_in :]), math.prod(one[: leaf.n_in])
  return one


def rows_from_pairs(matrix: np.ndarray, n_heads: int) -> np.ndarray:
  """Reorders rows stored as rotary pairs into halves, within each head.

  With rows 0 and 1 the first pair, 2 and 3 the second, ...:

    [0 1 2 3 4 5] -> [0 2 4 1 3 5]

  Args:
    matrix: [N H, ...], the rows of N heads.
    n_heads: N.

  Returns:
    The rows in the order of the half-rotation layout.
  """
  rest = matrix.shape[1:]
  pairs = matrix.reshape(n_heads, -1, 2, *rest)
  return pairs.swapaxes(1, 2).reshape(matrix.shape)
