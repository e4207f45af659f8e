#!/bin/sh
# The GPU day on a machine that has torch, but neither gpuconsole's packages nor a network:
#     benchmarks/gpu_day/session.sh WHEELS [arguments of python -m benchmarks.gpu_day]
# WHEELS: the folder that wheels.sh made. The packages go into .venv-gpu-day; torch, triton and transformers are those of python3 here.
# Where a command may take some minutes only, repeat the command with the folder of the results: --minutes 9 --folder gpu-day
set -eu
wheels=$(cd "$1" && pwd)
shift
cd "$(dirname "$0")/../.."
venv=.venv-gpu-day
if [ ! -e "$venv/installed" ]; then
    python3 -m venv --system-site-packages --without-pip "$venv"
    python3 -m pip --python "$venv/bin/python" install --quiet --no-index --find-links "$wheels" gpuconsole pillow
    touch "$venv/installed"
fi
exec "$venv/bin/python" -m benchmarks.gpu_day "$@"
