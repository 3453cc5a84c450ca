"""What an imported model says of itself, in the origin.json of its run."""

import pathlib

from mtpjax import config as config_lib
from mtpjax.checkpoint.workdir import WorkDir
from mtpjax.errors import UserError


def imported_length(workdir: str | pathlib.Path) -> int:
  """Returns the positions that an imported model was made for.

  Args:
    workdir: of the model.

  Returns:
    How many; 0 where they are not known, and for a model that was trained.

  Raises:
    UserError: its origin.json is damaged.
  """
  path = WorkDir(workdir).origin
  if not path.is_file():
    return 0
  try:
    length = config_lib.read_json(path).get("max_length") or 0
  except (OSError, ValueError, AttributeError) as error:
    raise UserError(f"{path}: damaged ({error}); convert it anew") from error
  if not isinstance(length, int) or length < 0:
    raise UserError(
      f"{path}: max_length {length!r} is no number of tokens; correct it, or "
      "convert it anew"
    )
  return length
