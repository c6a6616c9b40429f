#!/usr/bin/env bash
# What a GPU says of the kernels, the driver, the stores and the engine, from a plain checkout, in under 8 minutes.
# Needs python with torch, triton, cuda-bindings, numpy, pytest and pyyaml; no hydra, no wandb, no network.
#   experiments/gpu_check.sh [--out DIR] [STAGE ...]     writes DIR/gpu_check.json and DIR/gpu_check.md as it goes
#   experiments/gpu_check.sh --rehearse                  every stage, tiny, on stand-ins on a CPU
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
python="$(command -v "$root/.venv/bin/python" || command -v python3)"
PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" exec "$python" "$root/experiments/gpu_check/main.py" "$@"
