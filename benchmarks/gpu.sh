#!/usr/bin/env bash
# All that is asked of an accelerator, in one command of under 8 minutes: tables on the screen and in benchmarks/results/.
#   pip install '.[cuda12]' and, for the comparison, a PyTorch that sees the same device; then: bash benchmarks/gpu.sh
set -uo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH="$PWD:$PWD/benchmarks" XLA_PYTHON_CLIENT_PREALLOCATE=false
export FLJAX_DATA="${FLJAX_DATA:-$PWD/.carry}"  # where the sweep finds Fashion-MNIST
results=benchmarks/results
mkdir -p "$results"
status=0
timeout 330 python benchmarks/gpu.py --save --check "$@" 2>&1 | tee "$results/gpu.txt" || status=1
timeout 140 python benchmarks/sweep.py --only mlp --curve 1 4 16 64 128 256 2>&1 | tee "$results/gpu_sweep.txt" || status=1
exit $status
