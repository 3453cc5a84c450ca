#!/usr/bin/env bash
# The main job, from nothing to a table: prepares the Python standard library,
# trains a small model with four heads, restores it in a new process, finds out
# which drafts pay here, evaluates the model and decodes with it. Sets up its own .venv if none is active.
#
#   bash launch/quickstart.sh [overrides of experiments/quickstart.py]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source launch/environment.sh

workdir=runs/quickstart
experiment=experiments/quickstart.py
mtpjax prepare "$experiment" "$@"
mtpjax train "$experiment" --workdir "$workdir" "$@"
mtpjax calibrate "$workdir" --batches 1
mtpjax evaluate "$workdir" --batches 100 --decode --json "$workdir/summary.json"
cat <<EOF

Done: $workdir/summary.json has these figures. What to try next:
  mtpjax generate $workdir --prompt "def main(" --mode chain
  mtpjax generate $workdir --prompt "x" --mode auto
  mtpjax bench decode $workdir --batches 1,4 --temperatures 0,0.8
  mtpjax inspect $workdir
  mtpjax train $experiment --workdir $workdir --train.steps 2000 \\
    --optim.decay-steps 2000
The command needs the environment: source .venv/bin/activate
EOF
