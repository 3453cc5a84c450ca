"""`python -m mtpjax`, where the command is not installed."""

import sys

from mtpjax.cli import main

sys.exit(main())
