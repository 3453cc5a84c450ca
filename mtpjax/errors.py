"""The one exception that is a message for the user."""


class UserError(ValueError):
  """A mistake in the input: names the thing, its value and the way out.

  The command line prints it as one line and exits with status 2; a library
  user catches it as the `ValueError` it is.
  """
