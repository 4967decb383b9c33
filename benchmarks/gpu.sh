#!/usr/bin/env bash
# All that is asked of an accelerator, in one command of under 8 minutes: a table on the screen and in benchmarks/results/.
#   bash benchmarks/gpu.sh           needs JAX for the device (pip install '.[cuda12]') and, for the comparison, a PyTorch
#                                    that sees it; neither data nor network
#   bash benchmarks/gpu.sh --tiny    every line of it, on a CPU too, in some minutes; nothing is kept
#   bash benchmarks/gpu.sh --only conv bfloat16    some parts again, their rows in the place of the old ones
#   RESULTS=folder bash benchmarks/gpu.sh    the table, gpu-DEVICE.csv, in another folder
set -uo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH="$PWD:$PWD/benchmarks${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
export XLA_PYTHON_CLIENT_PREALLOCATE=false  # PyTorch needs some of the memory too
results=${RESULTS:-benchmarks/results}
[[ " $* " == *" --tiny "* ]] && results=$(mktemp -d)
mkdir -p "$results"
# gpu.py leaves out what there is no time for and stores each row as it comes; the outer limit is for a call that hangs.
timeout 475 python3 benchmarks/gpu.py --check --seconds 430 --output "$results" "$@"
