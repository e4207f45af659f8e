"""What a program leaves behind, written as JSON to the file $FACTS. Copied beside each program;
imports only what the program has imported."""

from __future__ import annotations

import gc
import hashlib
import json
import multiprocessing
import os
import random
import signal
import sys
import threading
import warnings
from typing import Any

SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGHUP,
    signal.SIGALRM,
    signal.SIGPROF,
    signal.SIGCHLD,
)
STEPS = int(os.environ.get("STEPS", "120"))
PAUSE_S = float(os.environ.get("PAUSE_S", "0.002"))
random.seed(0)
if "numpy" in sys.modules:
    sys.modules["numpy"].random.seed(0)


def digest(value: Any) -> str:
    """A digest of tensors, numbers and texts in any nesting."""
    made = hashlib.blake2s(digest_size=8)
    _feed(made, value)
    return made.hexdigest()


def _feed(made: Any, value: Any) -> None:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        made.update(str((value.dtype, tuple(value.shape))).encode())
        made.update(
            value.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()
            if value.numel()
            else b""
        )
    elif isinstance(value, dict):
        for key in value:
            made.update(repr(key).encode())
            _feed(made, value[key])
    elif isinstance(value, (list, tuple)):
        for item in value:
            _feed(made, item)
    else:
        made.update(repr(value).encode())


def end(**named: Any) -> None:
    """Write the facts. `named`: what the program has made: models and optimizers by their states,
    everything else as it is."""
    torch, numpy = sys.modules["torch"], sys.modules.get("numpy")
    states = {
        name: value.state_dict() if hasattr(value, "state_dict") else value
        for name, value in named.items()
    }
    facts = {
        **{f"value {name}": digest(value) for name, value in states.items()},
        "random of torch": digest(torch.get_rng_state()),
        "random of Python": digest(random.getstate()),
        "random of NumPy": digest([str(part) for part in numpy.random.get_state()])
        if numpy is not None
        else "",
        "default dtype": str(torch.get_default_dtype()),
        "threads of torch": torch.get_num_threads(),
        "grad mode": torch.is_grad_enabled(),
        "anomaly mode": torch.is_anomaly_enabled(),
        "matmul precision": torch.get_float32_matmul_precision(),
        "warning filters": len(warnings.filters),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "children": len(multiprocessing.active_children()),
        "signals": {
            signal.Signals(number).name: str(
                getattr(signal.getsignal(number), "__name__", signal.getsignal(number))
            )
            for number in SIGNALS
        },
        "timers": [
            signal.getitimer(signal.ITIMER_REAL)[1],
            signal.getitimer(signal.ITIMER_PROF)[1],
        ],
        "trace and profile": [sys.gettrace() is not None, sys.getprofile() is not None],
        "excepthook": sys.excepthook is sys.__excepthook__,
        "gc": [gc.isenabled(), gc.get_threshold()],
        "callbacks of gc": len(gc.callbacks),
        "recursion limit": sys.getrecursionlimit(),
        "path": [part for part in sys.path if "gpuconsole" not in part],
        "modules": sorted(name for name in sys.modules if not name.startswith("_gpuconsole_agent")),
        "files": sorted(name for name in map(_target, os.listdir("/proc/self/fd")) if name),
        "folder": os.getcwd(),
        "umask": _umask(),
    }
    with open(os.environ["FACTS"], "a") as file:
        file.write(json.dumps(facts) + "\n")


def _target(number: str) -> str:
    """What an open file is, without what differs between two runs; empty for sockets and pipes, of
    which the agent has one."""
    try:
        target = os.readlink(f"/proc/self/fd/{number}")
    except OSError:
        return ""
    return (
        ""
        if target.startswith(("socket:", "pipe:", "anon_inode:", "/proc/"))
        else os.path.basename(target)
    )


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
