#!/bin/sh
# The GPU day on a machine that has torch:
#     sh benchmarks/gpu_day/session.sh [WHEELS] [arguments of python -m benchmarks.gpu_day]
# torch, triton and transformers are those of python3 here, which may itself be a virtual environment. What else gpuconsole needs, and python3 lacks,
# goes into .venv-gpu-day: from the folder WHEELS that wheels.sh made, for a machine without a network, otherwise from pip's index.
# Where a command may take some minutes only, repeat the command: sh benchmarks/gpu_day/session.sh WHEELS --minutes 9 --folder gpu-day
set -eu
wheels=
if [ $# -gt 0 ] && [ -d "$1" ]; then
    wheels=$(cd "$1" && pwd)
    shift
fi
here=$(pwd)
cd "$(dirname "$0")/../.."
root=$(pwd)
venv=${GPU_DAY_VENV:-$root/.venv-gpu-day}
python3 benchmarks/gpu_day/environment.py "$venv" ${wheels:+"$wheels"}
cd "$here" # a relative --folder is the caller's
PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" exec "$venv/bin/python" -m benchmarks.gpu_day "$@"
