# shellcheck shell=bash
# Sourced by the scripts beside it, from the root of the project: makes and
# activates .venv if no virtual environment is active, and installs mtpjax in
# it. Extras to install come in $extras ("" or "[dev]", which covers "").
if [[ -z "${VIRTUAL_ENV:-}" && -x .venv/bin/python ]]; then
  # shellcheck source=/dev/null
  source .venv/bin/activate
fi
# python3 is that of the environment now, or the one to make it with.
if ! python3 -c "import sys; sys.exit(sys.version_info < (3, 11))" \
  2>/dev/null; then
  echo "mtpjax needs Python 3.11 or later as python3, but that is:" \
    "$(python3 --version 2>&1)" >&2
  exit 1
fi
if [[ -z "${VIRTUAL_ENV:-}" ]]; then
  echo "making .venv with $(python3 --version)"
  python3 -m venv .venv
  # shellcheck source=/dev/null
  source .venv/bin/activate
fi
sources="$(cat requirements.txt setup.cfg setup.py pyproject.toml | cksum)"
stamp="$VIRTUAL_ENV/mtpjax-installed"
installed="$(cat "$stamp" 2>/dev/null || true)"
if [[ "$installed" != "${sources}${extras:-}" &&
  "$installed" != "${sources}[dev]" ]]; then
  # Environments that uv makes have no pip.
  if ! python -m pip --version >/dev/null 2>&1 &&
    ! python -m ensurepip >/dev/null 2>&1; then
    echo "$VIRTUAL_ENV has no pip; install it there: uv pip install pip" >&2
    exit 1
  fi
  echo "installing mtpjax${extras:-} and what it needs; about a minute"
  python -m pip install --quiet --disable-pip-version-check \
    --editable ".${extras:-}"
  echo "${sources}${extras:-}" >"$stamp"
fi
