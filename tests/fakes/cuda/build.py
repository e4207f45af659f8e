"""Compiles device.cpp against the installed torch. The library is kept by its content, so that a
test session compiles at most once.

A torch that has CUDA itself gets a libtorch_cuda.so without kernels: the dispatch key CUDA is then
left to the simulated device, as in a CPU build.
"""

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
NO_KERNELS = Path(__file__).with_name("no_kernels.cpp")
FLAGS = ["-O1", "-std=c++20", "-shared", "-fPIC", "-Wall", "-Werror"]
VERSION = "2.13"
"""The torch that device.cpp is written for: the C++ interfaces of torch change between versions."""


class NotHereError(RuntimeError):
    """The simulated device cannot be built on this machine; the message says why."""


def build_device() -> Path:
    """Compile the library where that is not done yet. Raises NotHereError without a compiler or
    with another torch."""
    compiler = shutil.which("g++")
    if compiler is None:
        raise NotHereError("the simulated CUDA device needs g++")
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise NotHereError("the simulated CUDA device needs torch")
    version = metadata.version("torch")
    if not version.startswith(VERSION + "."):
        raise NotHereError(
            f"the simulated CUDA device is written for torch {VERSION}, not {version}"
        )
    torch = Path(spec.origin).parent
    sources = b"".join(path.read_bytes() for path in (SOURCE, NO_KERNELS, Path(__file__)))
    key = hashlib.sha256(sources + version.encode() + str(torch).encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"gpuconsole-simulated-cuda-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    library = folder / f"{key}.so"
    with open(folder / "lock", "w") as lock:  # several test processes start at the same time
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            partial = library.with_suffix(".partial")
            includes = [f"-I{torch}/include", f"-I{torch}/include/torch/csrc/api/include"]
            links = [f"-L{torch}/lib", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{torch}/lib"]
            if (torch / "lib" / "libtorch_cuda.so").exists():
                links = [*_without_kernels(compiler, torch / "lib", folder / key, includes), *links]
            subprocess.run(
                [compiler, *FLAGS, str(SOURCE), "-o", str(partial), *includes, *links], check=True
            )
            partial.rename(library)
    return library


def _without_kernels(
    compiler: str, libraries: Path, folder: Path, includes: list[str]
) -> list[str]:
    """Compile a libtorch_cuda.so that has the names which torch's Python library takes from it, and
    return the options that link it.

    Loaded first, it is the one that torch's other libraries get. Its functions throw, but for those
    in no_kernels.cpp. libc10_cuda.so is loaded before the simulated device too: the device guard
    and the allocator that are registered last are in use.
    """
    folder.mkdir(exist_ok=True)
    source, stub = folder / "kernels.cpp", folder / "libtorch_cuda.so"
    wanted = _symbols(libraries / "libtorch_python.so", "--undefined-only").keys()
    lines = [
        "#include <stdexcept>",
        'extern void* type_info[] __asm__("_ZTVN10__cxxabiv117__class_type_infoE");',
        "struct Type { void** table; const char* name; };",
    ]
    defined = _symbols(libraries / "libtorch_nvshmem.so", "--defined-only") | _symbols(
        libraries / "libtorch_cuda.so", "--defined-only"
    )  # the one needs the other
    for number, (name, kind) in enumerate(defined.items()):
        if name not in wanted:
            continue
        if kind == "T":
            lines.append(f'__attribute__((weak)) void f{number}() __asm__("{name}");')
            lines.append(
                f'void f{number}() {{ throw std::runtime_error("the simulated CUDA device lacks'
                f' {name}"); }}'
            )
        elif name.startswith("_ZTI"):
            lines.append(f'extern Type t{number} __asm__("{name}");')
            lines.append(f'Type t{number} = {{type_info + 2, "{name.removeprefix("_ZTI")}"}};')
        else:  # a table of virtual functions: no object of the class is made
            lines.append(f'extern void* v{number}[64] __asm__("{name}");')
            lines.append(f"void* v{number}[64] = {{}};")
    source.write_text("\n".join(lines) + "\n")
    command = [
        compiler,
        *FLAGS,
        str(NO_KERNELS),
        str(source),
        "-o",
        str(stub),
        "-Wl,-soname,libtorch_cuda.so",
        *includes,
    ]
    subprocess.run([*command, f"-L{libraries}", "-ltorch_cpu", "-lc10"], check=True)
    return [
        "-Wl,--no-as-needed",
        f"-Wl,-rpath,{folder}",
        str(stub),
        str(libraries / "libc10_cuda.so"),
        f"-Wl,-rpath-link,{libraries}",
    ]


def _symbols(library: Path, which: str) -> dict[str, str]:
    """The names that a library defines or takes from others, without their versions, and the kind
    of each."""
    listed = subprocess.run(
        ["nm", "-D", which, str(library)], check=True, capture_output=True, text=True
    ).stdout
    fields = (line.split()[-2:] for line in listed.splitlines())
    return {name.partition("@")[0]: kind for kind, name in fields}
