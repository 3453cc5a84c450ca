"""Tensors saved from inside a wrapper of PyTorch's, by their own names."""

import dataclasses
import re
from collections.abc import Sequence

import numpy as np

from mtpjax.checkpoint.convert.containers.tensors import Tensors
from mtpjax.errors import UserError

# torch.compile, FSDP and activation checkpointing put one wherever they wrap.
_ANYWHERE = re.compile(
  r"(?:^|(?<=\.))"
  r"(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\."
)
# Data parallelism wraps the whole model, in a name that others use, too.
_OF_ALL = "module."


@dataclasses.dataclass
class _Unwrapped:
  """Tensors under other names."""

  source: str
  tensors: Tensors
  stored_name: dict[str, str]

  def names(self) -> Sequence[str]:
    return list(self.stored_name)

  def shape(self, name: str) -> tuple[int, ...]:
    return self.tensors.shape(self.stored_name[name])

  def read(
    self, name: str, rows: slice = slice(None), columns: slice = slice(None)
  ) -> np.ndarray:
    return self.tensors.read(self.stored_name[name], rows, columns)


def unwrapped(tensors: Tensors) -> Tensors:
  """Returns the tensors without the parts of names that wrappers add.

  Args:
    tensors: as they are stored, as `_orig_mod.model.norm.weight`.

  Returns:
    The same ones, as `model.norm.weight`.

  Raises:
    UserError: two tensors differ in their wrappers alone.
  """
  names = {name: _ANYWHERE.sub("", name) for name in tensors.names()}
  while names and all(own.startswith(_OF_ALL) for own in names.values()):
    names = {
      name: _ANYWHERE.sub("", own.removeprefix(_OF_ALL))
      for name, own in names.items()
    }
  if all(name == own for name, own in names.items()):
    return tensors
  stored_name: dict[str, str] = {}
  for name, own in names.items():
    if own in stored_name:
      raise UserError(
        f"{tensors.source}: holds {own} twice, as {stored_name[own]} and as "
        f"{name}; save the model again, unwrapped"
      )
    stored_name[own] = name
  return _Unwrapped(tensors.source, tensors, stored_name)
