"""What several checks use: the command line, a load in the background, readings of the driver."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import msgspec

from benchmarks.gpu_day.check import Day, NotHereError
from benchmarks.headless import RunError, last_line, run_command
from gpuconsole.engine.children.once import DevicesReading, read_devices
from gpuconsole.model.run import Run
from gpuconsole.model.snapshot import Snapshot, decode

END_S = 60.0


def run(day: Day, scenario: str, duration_s: float, *options: str) -> Snapshot:
    """The session of a headless run on the device. Raises RunError."""
    done = run_command(scenario, duration_s, "--device", day.device, *options)
    if done.returncode != 0:
        raise RunError(f"exit code {done.returncode}: {last_line(done.stderr)}")
    return decode(done.stdout.encode())


def summary(run: Run) -> dict[str, Any]:
    """The run's summary as in a snapshot."""
    return dict(msgspec.to_builtins(run.summary))


@contextlib.contextmanager
def load(kind: str, seconds: float) -> Iterator[dict[str, Any]]:
    """A load of `loads.py` that runs meanwhile. After the block the yielded dictionary holds its
    figures."""
    found: dict[str, Any] = {}
    command = [sys.executable, "-m", "benchmarks.gpu_day.loads", kind, "--seconds", str(seconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        if process.stdout.readline().strip() != "running":
            raise RuntimeError(
                f"the load {kind} does not run: {last_line(process.communicate(timeout=END_S)[1])}"
            )
        yield found
        words, errors = process.communicate(timeout=seconds + END_S)
        if process.returncode:
            raise RuntimeError(f"the load {kind} failed: {last_line(errors)}")
        found.update(json.loads(words.splitlines()[-1]))
    finally:
        process.kill()
        process.wait()


def read(interval_s: float = 1.0) -> DevicesReading:
    """All devices, rates over `interval_s`. Raises RuntimeError where the driver does not
    answer."""
    reading = read_devices(20.0, interval_s)
    if reading.error:
        raise RuntimeError(reading.error)
    return reading


def values(day: Day, interval_s: float = 1.0) -> dict[str, float]:
    """The device's metrics in SI units. Raises RuntimeError."""
    return read(interval_s).state.readings.present(day.device)


def need(values: dict[str, float], name: str, reading: DevicesReading, day: Day) -> float:
    """A metric. Raises NotHereError with the driver's reason where there is none."""
    if name not in values:
        raise NotHereError(
            f"{name}: {reading.state.unavailable.get(day.device, {}).get(name, 'no value')}"
        )
    return values[name]
