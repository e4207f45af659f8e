#!/bin/sh
# Makes the folder of packages that session.sh installs on a machine without a network:
#     benchmarks/gpu_day/wheels.sh FOLDER [PYTHON_VERSION]
# PYTHON_VERSION is that of the GPU machine, such as 3.12 (default: that of python3 here). torch is not in the folder: the GPU machine has its own.
set -eu
folder=$1
version=${2:-$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')}
root=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
rm -f "$folder"/*.whl
python3 -m pip wheel --quiet --no-deps --wheel-dir "$folder" "$root"
grep -v '^torch==' "$root/constraints.txt" > "$folder/constraints.txt"
python3 -m pip download --quiet --only-binary=:all: --python-version "$version" --dest "$folder" --constraint "$folder/constraints.txt" \
    "$folder"/gpuconsole-*.whl pillow
echo "$(ls "$folder"/*.whl | wc -l) packages for Python $version in $folder, $(du -sh "$folder" | cut -f1)"
