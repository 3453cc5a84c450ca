# shellcheck shell=bash
# Sourced by the scripts beside it, from the root of the project: makes and
# activates .venv if no virtual environment is active, and installs mtpjax in
# it. Extras to install come in $extras ("" or "[dev]").
if [[ -z "${VIRTUAL_ENV:-}" ]]; then
  if [[ ! -x .venv/bin/python ]]; then
    echo "making .venv with $(python3 --version)"
    python3 -m venv .venv
  fi
  # shellcheck source=/dev/null
  source .venv/bin/activate
fi
wanted="$(cat requirements.txt setup.cfg pyproject.toml | cksum)${extras:-}"
stamp="$VIRTUAL_ENV/mtpjax-installed"
if [[ ! -f "$stamp" || "$(cat "$stamp")" != "$wanted" ]]; then
  echo "installing mtpjax${extras:-} and what it needs; about a minute"
  python -m pip install --quiet --disable-pip-version-check \
    --editable ".${extras:-}"
  echo "$wanted" >"$stamp"
fi
