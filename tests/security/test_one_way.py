"""A file that other users could reach is opened in one module: gpuconsole/host/files.py."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
METHODS = {
    "read_text", "read_bytes", "write_text", "write_bytes", "touch", "mkdir", "makedirs",
    "mkdtemp", "mkstemp", "mktemp", "NamedTemporaryFile", "TemporaryDirectory", "TemporaryFile",
    "SpooledTemporaryFile", "copyfile", "copytree", "copy2", "symlink_to", "hardlink_to", "mkfifo",
}  # fmt: skip
OPENERS = {"os", "io", "gzip", "Image", "bz2", "lzma", "zipfile", "tarfile", "codecs"}
MODE = re.compile(r"[rwxa][bt]?\+?[bt]?")

OWN = "in a private folder of ours (Scratch, or the cache)"
SYSTEM = "in /proc, /sys or /dev"
ALLOWED = {
    "host/files.py": "the one way",
    "host/folders.py": "makes the private folders",
    # in the user's job, which imports nothing of the host
    "agent/clock.py": SYSTEM,
    "agent/descriptors.py": SYSTEM,
    "agent/free_memory.py": SYSTEM,
    "agent/hooks/changes/batch_sources.py": "an unnamed file of /dev/shm",
    "agent/hooks/changes/loader.py": "the source of the job, which the job itself has run",
    "agent/hooks/changes/state.py": SYSTEM,
    "agent/hooks/connection.py": OWN,
    "agent/hooks/evidence/loading_parts.py": OWN,
    "agent/hooks/job.py": SYSTEM,
    "agent/hooks/watch.py": "the source of the job, which the job itself has run",
    "agent/inject/sitecustomize.py": OWN,
    # the console
    "cli/commands/machine/doctor.py": SYSTEM,
    "cli/headless_job.py": SYSTEM,
    "cli/main.py": SYSTEM,
    "engine/children/host_memory.py": SYSTEM,
    "engine/children/job.py": OWN,
    "engine/children/one_shot.py": OWN,
    "engine/children/signals.py": SYSTEM,
    "engine/children/terminal/holder.py": "O_EXCL and O_NOFOLLOW, in a process that imports little",
    "engine/children/terminal/lead.py": SYSTEM,
    "host/cores.py": SYSTEM,
    "host/environment.py": "the generated version.py of the installed torch",
    "host/installation.py": "the metadata of an installed package",
    "host/listening.py": SYSTEM,
    "host/load.py": SYSTEM,
    "mcp/control.py": OWN,
    "model/peaks.py": "the package's own data",
    "mcp/server.py": SYSTEM,
    "notebook/console.py": "a file without a name",
    "report/trackers/wandb.py": "a folder of tempfile, which only the user can read",
    "telemetry/host.py": SYSTEM,
    "telemetry/nvml/facts.py": SYSTEM,
    "telemetry/nvml/processes.py": SYSTEM,
    "wire/recording.py": "gzip on a file that is open",
    # children of the console
    "workloads/calibration/allreduce.py": OWN,
    "workloads/calibration/measures.py": OWN,
    "workloads/profiling/analyse.py": OWN,
    "workloads/profiling/trace.py": OWN,
    "workloads/profiling/window.py": OWN,
    "workloads/serving/engine/model.py": OWN,
    "workloads/serving/in_vllm/gpuconsole_caps.py": "O_NOFOLLOW, owner and kind are checked",
    "workloads/serving/live_limits.py": "O_NOFOLLOW, owner and kind are checked",
    "workloads/serving/servers.py": OWN,
    "workloads/training/loop.py": OWN,
    "workloads/training/vision.py": OWN,
}


def opens(call: ast.Call) -> bool:
    """Whether this call opens or makes a file or a folder."""
    function = call.func
    if isinstance(function, ast.Name):
        return function.id == "open" or function.id in METHODS
    if not isinstance(function, ast.Attribute):
        return False
    if "files('gpuconsole" in ast.unparse(function.value):  # data of the package
        return False
    base = function.value
    if isinstance(base, ast.Name) and base.id == "shutil" and function.attr in ("copy", "move"):
        return True
    if function.attr != "open":
        return function.attr in METHODS
    if isinstance(base, ast.Name) and base.id in OPENERS:
        return True
    first = call.args[0] if call.args else None
    if call.keywords and any(keyword.arg in ("mode", "encoding") for keyword in call.keywords):
        return True
    return (
        isinstance(first, ast.Constant)
        and isinstance(first.value, str)
        and bool(MODE.fullmatch(first.value))
    )


def test_files_are_opened_in_one_module() -> None:
    found: dict[str, list[int]] = {}
    for path in sorted((ROOT / "gpuconsole").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Call) and opens(node):
                name = str(path.relative_to(ROOT / "gpuconsole"))
                found.setdefault(name, []).append(node.lineno)
    new = {name: lines for name, lines in found.items() if name not in ALLOWED}
    assert not new, f"open files of strangers, and write files, by gpuconsole.host.files: {new}"
    assert not ALLOWED.keys() - found.keys(), "these open no file any more"
