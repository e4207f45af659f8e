"""The profiler window as the engine takes it, and how a user looks further: where the trace lies, and nsys."""

from __future__ import annotations

import re
import shlex
import time
from pathlib import Path

from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.profile import ProfileReport
from gpuconsole.processes.worker import WorkerGone, WorkerHandle
from gpuconsole.session.api import SessionError

NSYS_S = 20


async def take_window(worker: WorkerHandle, scenario: str, steps: int, folder: Path | None) -> ProfileReport:
    """Profile `steps` steps of the run; the trace goes into `folder`, else here. Raises SessionError."""
    target = trace_path(scenario, folder)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SessionError(f"{target.parent}: cannot be written: {error.strerror}") from None
    try:
        answer = await worker.profile(steps, str(target))
    except WorkerGone:
        raise SessionError("the run ended before its profile was there") from None
    if answer.report is None:
        raise SessionError(answer.error or "no profile")
    return answer.report


def trace_path(scenario: str, folder: Path | None) -> Path:
    """A dated file of the scenario's name. Absolute: the worker has a folder of its own."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", scenario)
    return (folder or Path()).absolute() / f"gpuconsole-trace-{name}-{time.strftime('%Y%m%d-%H%M%S')}.json.gz"


def nsys_command(scenario: str, changes: Knobs, device: str) -> str:
    """The command that records this scenario with Nsight Systems.

    CUDA's data are saved twice a second: the worker ends at once when it is told to, and takes with it what is only buffered.
    """
    settings = [part for name, value in changes.items() for part in ("--set", f"{name}={_text(value)}")]
    output = f"gpuconsole-nsys-{re.sub(r'[^A-Za-z0-9._-]+', '-', Path(scenario).stem)}"
    return shlex.join(
        ["nsys", "profile", "--trace=cuda,nvtx,osrt,cublas,cudnn", "--sample=none", "--cuda-flush-interval=500", f"--output={output}",
         "gpuconsole", "run", scenario, *settings, "--device", device, "--headless", "--duration", str(NSYS_S)]
    )  # fmt: skip


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
