#!/usr/bin/env bash
# All tests, on eight host devices of the CPU. Sets up its own .venv if none is
# active. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export extras="[dev]"
source launch/environment.sh
ruff check . && ruff format --check .
exec python -m pytest "$@"
