#!/usr/bin/env bash
# On a machine with one GPU, jax 0.10 to 0.12 and no network, in under ten
# minutes: numeric tests on the device, then the three benches in bfloat16 on
# a model of about 1 B parameters. JSON goes to the folder given. Whatever
# fails, the rest is run; the exit status says so at the end.
#
#   bash launch/gpu_check.sh OUT          on the GPU
#   bash launch/gpu_check.sh OUT --tiny   a dry run on the CPU
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out="${1:?usage: bash launch/gpu_check.sh OUT [--tiny]}"
size="${2:-}"
mkdir -p "$out"

if [[ "$size" == "--tiny" ]]; then
  export JAX_PLATFORMS=cpu
  model=(--model.d-model 64 --model.n-layers 10 --model.n-attention-heads 2
    --model.n-kv-heads 1 --model.d-head 32 --model.d-ff 128
    --model.vocab-size 512)
  rows=(--data.row-length 64 --train.batch-size 2)
  decode=(--batches "1,2" --prompt-length 32 --new-tokens 16)
  repeats=2
else
  export JAX_PLATFORMS="${JAX_PLATFORMS:-cuda}"
  model=(--model.d-model 2048 --model.n-layers 18 --model.n-attention-heads 16
    --model.n-kv-heads 8 --model.d-head 128 --model.d-ff 5632
    --model.vocab-size 32000)
  rows=(--data.row-length 1024 --train.batch-size 8)
  decode=(--batches "1,8" --prompt-length 256 --new-tokens 128)
  repeats=5
fi
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
failed=()

check() {
  echo "== $1"
  "${@:2}" || failed+=("$1")
}

bench() {
  check "bench $1" python3 -m mtpjax bench "$@" --model.dtype bfloat16 \
    "${model[@]}" --repeats "$repeats" --json "$out/$1.json"
}

check "numeric tests on the device" python3 -m pytest -m device tests/device
bench memory "${rows[@]}" --n 1,2,4,8
bench train "${rows[@]}" --model.remat full --loss.chunk-tokens 2048
bench decode "${decode[@]}" --modes next,chain,tree --temperatures 0,1
if ((${#failed[@]})); then
  printf 'FAILED: %s\n' "${failed[@]}" >&2
  exit 1
fi
echo "done: $out has memory.json, train.json and decode.json"
