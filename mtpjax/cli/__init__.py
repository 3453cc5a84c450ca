"""The command `mtpjax`: reads arguments, calls a job."""

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command line.

  Args:
    argv: the arguments. None takes those of the process, which then is to end:
      a signal that comes later ends it at once.

  Returns:
    The exit status: 0; 2 for a mistake of the user's, or a file, a disk or a
    memory that failed; 1 for a bug; 128 and the number of the signal that ended
    it, which is 130 for Ctrl-C.
  """
  # Imported here, so that Ctrl-C meanwhile is no traceback either.
  try:
    from mtpjax.cli import command

    return command.run(argv)
  except KeyboardInterrupt:
    print("mtpjax: interrupted", file=sys.stderr)
    if argv is None:
      from mtpjax.cli import signals

      signals.end_at_once()
    return 130
