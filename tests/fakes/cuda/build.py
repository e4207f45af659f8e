"""Compiles device.cpp against the installed torch. The library is kept by its content, so that a test session compiles at most once."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from importlib import metadata
from pathlib import Path

SOURCE = Path(__file__).with_name("device.cpp")
FLAGS = ["-O1", "-std=c++20", "-shared", "-fPIC", "-Wall", "-Werror"]
VERSION = "2.13"
"""The torch that device.cpp is written for: the C++ interfaces of torch change between versions."""


class NotHereError(RuntimeError):
    """The simulated device cannot be built on this machine; the message says why."""


def build_device() -> Path:
    """The compiled library. Raises NotHereError without a compiler, with another torch, or with a torch that has CUDA itself."""
    compiler = shutil.which("g++")
    if compiler is None:
        raise NotHereError("the simulated CUDA device needs g++")
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise NotHereError("the simulated CUDA device needs torch")
    version = metadata.version("torch")
    if not version.startswith(VERSION + "."):
        raise NotHereError(f"the simulated CUDA device is written for torch {VERSION}, not {version}")
    torch = Path(spec.origin).parent
    if (torch / "lib" / "libtorch_cuda.so").exists():
        raise NotHereError("this torch has CUDA itself; the simulated device needs the CPU build")
    key = hashlib.sha256(SOURCE.read_bytes() + version.encode() + str(torch).encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"gpuconsole-simulated-cuda-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    library = folder / f"{key}.so"
    with open(folder / "lock", "w") as lock:  # several test processes start at the same time
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            partial = library.with_suffix(".partial")
            includes = [f"-I{torch}/include", f"-I{torch}/include/torch/csrc/api/include"]
            links = [f"-L{torch}/lib", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{torch}/lib"]
            subprocess.run([compiler, *FLAGS, str(SOURCE), "-o", str(partial), *includes, *links], check=True)
            partial.rename(library)
    return library
