"""The analysis of a profiler trace that a user's own job has written: a process of its own, in the console's Python."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from pathlib import Path

import msgspec

from gpuconsole.engine.children.environment import own_environment
from gpuconsole.model.profile import ProfileReport
from gpuconsole.wire.events import Profiled

ANALYSIS_S = 120.0
"""Time limit in seconds, longer than the analysis of the largest known trace."""


async def analysed(answer: Profiled) -> Profiled:
    """`answer` with the report on its trace, or with the reason why there is none. The trace is removed; a copy goes to `answer.keep`."""
    trace = Path(answer.trace)
    target = trace.with_name("report.json")
    arguments = [str(trace), str(target), "--keep", answer.keep, *(["--gpu"] if answer.gpu else [])]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        "gpuconsole.workloads.profiling.analyse",
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **own_environment()},
    )
    report, error = None, None
    try:
        _, said = await asyncio.wait_for(process.communicate(), ANALYSIS_S)
        report = msgspec.json.decode(target.read_bytes(), type=ProfileReport)
    except TimeoutError:
        process.kill()
        error = f"the trace was not read within {ANALYSIS_S:.0f} s"
    except (OSError, msgspec.DecodeError):
        lines = said.decode(errors="replace").strip().splitlines()
        error = f"the trace could not be read: {lines[-1] if lines else f'exit code {process.returncode}'}"
    finally:
        for path in (trace, target):
            with contextlib.suppress(OSError):
                path.unlink()
    return msgspec.structs.replace(answer, trace="", report=report, error=error)
