"""The one exception that is a message for the user."""

import os
import shlex


class UserError(ValueError):
  """A mistake in the input: names the thing, its value and the way out.

  The command line prints it as one line and exits with status 2; a library
  user catches it as the `ValueError` it is.
  """


def quoted(path: str | os.PathLike[str]) -> str:
  """Returns a path as a command in a message has it, to be pasted in a shell.

  Args:
    path: a file or folder, whatever characters are in its name.

  Returns:
    The path, in quotes if a shell would not take it as one word.
  """
  text = os.fspath(path)
  # A shell takes letters of all scripts as they are; `shlex` quotes them.
  plain = "".join("a" if c.isalnum() else c for c in text)
  return text if shlex.quote(plain) == plain else shlex.quote(text)
