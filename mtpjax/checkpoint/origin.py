"""What an imported model says of itself, in the origin.json of its run."""

import json
import pathlib

from mtpjax import config as config_lib
from mtpjax.checkpoint.workdir import WorkDir
from mtpjax.errors import UserError


def max_length(
  workdir: str | pathlib.Path,
  config: config_lib.Config,
  base: str | pathlib.Path = "",
) -> int:
  """Returns the tokens that a model sees at most.

  Args:
    workdir: its work directory.
    config: of the run there.
    base: where the model is that heads were trained on; empty takes what the
      run says.

  Returns:
    The positions that the imported model, or the imported base of heads, was
    made for, where they are known; else the length of the rows that the model
    was trained on.

  Raises:
    UserError: an origin.json is damaged.
  """
  places = [WorkDir(workdir)]
  if base or config.base.path:
    places.append(WorkDir(base or config.base.path))
  for place in places:
    if place.origin.is_file():
      length = _read_length(place.origin)
      if length:
        return length
  return config.data.row_length


def _read_length(path: pathlib.Path) -> int:
  """Returns `max_length` of an origin.json; 0 where it does not say."""
  try:
    length = json.loads(path.read_text()).get("max_length") or 0
  except (OSError, ValueError, AttributeError) as error:
    raise UserError(f"{path}: damaged ({error}); convert it anew") from error
  if not isinstance(length, int) or length < 0:
    raise UserError(
      f"{path}: max_length {length!r} is no number of tokens; correct it, or "
      "convert it anew"
    )
  return length
