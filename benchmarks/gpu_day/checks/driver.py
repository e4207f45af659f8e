"""The driver: what each NVML call answers, what it costs, and whether the figures agree with other
sources."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections import Counter, defaultdict
from typing import Any

import psutil

from benchmarks import agreement
from benchmarks.gpu_day.check import Day, NotHereError, check
from benchmarks.gpu_day.tools import load, need, read, values

EXPECTED = (0, 3, 6, 10, 13, 25)
"""Return codes with a plain meaning: done, not supported, not found, nothing within the time, not
in this driver, another version of the call."""
OF_VIRTUAL_MACHINES = (2, 4, 999)
"""Invalid argument, no permission, unknown error: what virtual machines and containers (gVisor)
answer to calls that a bare machine supports. The console shows the reason. Such an answer is noted;
it is no failure."""
WITH_LINKS = ("nvmlDeviceGetNvLinkState", "nvmlDeviceGetMigDeviceHandleByIndex")
"""Here the code 2 (invalid argument) ends a list."""
ROUNDS = 40


class Recorder:
    """Stands around every function of the binding, and notes what the driver answers."""

    def __init__(self) -> None:
        self.codes: dict[str, Counter[int]] = defaultdict(Counter)
        self.durations_s: dict[str, list[float]] = defaultdict(list)
        self.fields: dict[str, dict[str, Any]] = {}

    def install(self) -> None:
        import pynvml

        for name in dir(pynvml):
            function = getattr(pynvml, name)
            if name.startswith("nvml") and callable(function) and name[4].isupper():
                setattr(pynvml, name, self._around(name, function, pynvml.NVMLError))

    def _around(self, name: str, function: Any, failure: type[Exception]) -> Any:
        def called(*arguments: Any, **more: Any) -> Any:
            begun, code = time.perf_counter(), 0
            try:
                answer = function(*arguments, **more)
                if name == "nvmlDeviceGetFieldValues":
                    self._keep_fields(arguments[1], answer)
                return answer
            except failure as error:
                code = int(error.value)  # type: ignore[attr-defined]
                raise
            finally:
                self.durations_s[name].append(time.perf_counter() - begun)
                self.codes[name][code] += 1

        return called

    def _keep_fields(self, asked: list[tuple[int, int]], answers: Any) -> None:
        for (identifier, scope), answer in zip(asked, answers, strict=True):
            raw = {0: "dVal", 1: "uiVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}.get(
                answer.valueType, "ulVal"
            )
            self.fields[f"{identifier}/{scope:#x}" if scope else str(identifier)] = {
                "code": answer.nvmlReturn,
                "type": answer.valueType,
                "value": getattr(answer.value, raw),
                "timestamp_us": answer.timestamp,
                "latency_us": answer.latencyUsec,
            }


@check(value=100, seconds=5)
def machine(day: Day) -> None:
    """The machine: kernel, container, driver, torch and what it sees."""
    import torch

    day.note("kernel", f"{platform.release()} {platform.version()}")  # gVisor calls itself 4.4.0
    day.note("pid namespace", os.readlink("/proc/self/ns/pid"))
    day.note("Python", platform.python_version())
    day.note("torch", f"{torch.__version__}, CUDA {torch.version.cuda}")
    if shutil.which("nvidia-smi"):
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
        day.note("nvidia-smi -L", done.stdout.strip() or done.stderr.strip())
    state = read().state
    day.note("driver", state.driver or "unknown")
    gpus = [one for one in state.devices if one.is_gpu and not one.is_mig]
    day.require(
        "torch sees the GPUs",
        torch.cuda.is_available() and torch.cuda.device_count() >= 1,
        f"{torch.cuda.device_count()} of {len(gpus)}",
    )
    for index in range(torch.cuda.device_count()):
        day.note(f"cuda:{index}", torch.cuda.get_device_name(index))
    missing = state.unavailable.get(day.device, {})
    day.data["unavailable"] = missing
    day.note("metrics without a value", f"{len(missing)}")


@check(value=270, seconds=15)
def nvml_codes(day: Day) -> None:
    """Every NVML call that the console makes: its return codes, its raw field values, its cost."""
    recorder = Recorder()
    recorder.install()
    from gpuconsole.telemetry.nvml.library import NoNvml
    from gpuconsole.telemetry.nvml.source import NvmlSource

    try:
        source = NvmlSource(0.2)
    except NoNvml as error:
        raise NotHereError(str(error)) from None
    source.prime()
    for _ in range(ROUNDS):
        time.sleep(0.2)
        source.read(time.monotonic())
    of_calls = [
        (name, code)
        for name, codes in sorted(recorder.codes.items())
        for code in codes
        if code not in EXPECTED and not (code == 2 and name in WITH_LINKS)
    ]
    of_fields = [
        (f"field {name}", one["code"])
        for name, one in recorder.fields.items()
        if one["code"] not in EXPECTED
    ]
    strange = [
        f"{name} {code}"
        for name, code in (*of_calls, *of_fields)
        if code not in OF_VIRTUAL_MACHINES
    ]
    refused = [
        f"{name} {code}" for name, code in (*of_calls, *of_fields) if code in OF_VIRTUAL_MACHINES
    ]
    day.require("unexpected codes", not strange, ", ".join(strange) or "none")
    day.note("codes of virtual machines and containers (2, 4, 999)", ", ".join(refused) or "none")
    costs = {name: statistics.median(some) * 1e6 for name, some in recorder.durations_s.items()}
    slowest = max(costs, key=lambda name: costs[name])
    day.note(
        "calls", f"{len(costs)} functions, {sum(map(len, recorder.durations_s.values()))} calls"
    )
    day.note("slowest call", f"{slowest}: median {costs[slowest]:.0f} µs")
    wraps = {name: recorder.fields[name] for name in ("197", "198") if name in recorder.fields}
    day.note(
        "PCIe counters (fields 197, 198)",
        "; ".join(f"type {one['type']}, {one['value']}" for one in wraps.values())
        or "not asked: GPM has them",
    )
    day.data["codes"] = {name: dict(codes) for name, codes in recorder.codes.items()}
    day.data["fields"] = recorder.fields
    day.data["cost_us"] = {
        name: {
            "median": round(costs[name], 1),
            "p99": round(sorted(some)[int(0.99 * (len(some) - 1))] * 1e6, 1),
            "n": len(some),
        }
        for name, some in recorder.durations_s.items()
    }
    day.data["unavailable"] = source.unavailable()


@check(value=150, seconds=15)
def processes(day: Day) -> None:
    """The driver's process list holds the pid of a program that is known to run."""
    with load("gemm", 6.0):
        time.sleep(1.5)
        reading = read()
        own = {child.pid for child in psutil.Process().children(recursive=True)}
        found = [
            one for one in reading.state.processes if one.device.partition("/")[0] == day.device
        ]
    day.note("pids of the driver", ", ".join(str(one.pid) for one in found) or "none")
    day.note(
        "SM share",
        ", ".join(f"{one.sm_ratio:.2f}" for one in found if one.sm_ratio is not None) or "none",
    )
    day.require(
        "the load's pid is among them",
        bool(own & {one.pid for one in found}),
        "yes" if own & {one.pid for one in found} else "no",
    )


@check(value=160, seconds=10)
def agrees_with_nvidia_smi(day: Day) -> None:
    """Every field that nvidia-smi reports, too, agrees within 0.5 %."""
    if shutil.which("nvidia-smi") is None:
        raise NotHereError("nvidia-smi is not installed")
    rows = agreement.against_nvidia_smi()
    wrong = [row for row in rows if not row.moves and not row.agrees]
    day.expect("shared figures", float(len(rows)), low=10)
    day.note("within 0.5 %", float(sum(row.agrees for row in rows)))
    for row in wrong:
        day.require(
            f"{row.device} {row.metric}", False, f"ours {row.ours}, nvidia-smi {row.theirs}"
        )
    day.data["rows"] = [{**row._asdict(), "difference": row.difference} for row in rows]


@check(value=700, seconds=50)
def gpm(day: Day) -> None:
    """The hardware counters tell the truth about four loads: a matrix product, a copy, one block,
    nothing."""
    reading = read()
    need(reading.state.readings.present(day.device), "gpu.sm_active_ratio", reading, day)
    table = {"idle": values(day)}
    for kind in ("gemm", "copy", "one_block"):
        with load(kind, 7.0) as found:
            time.sleep(2.0)
            table[kind] = values(day)
        day.note(f"{kind}: rate", float(found["rate"]), found["unit"])
    names = (
        "gpu.sm_active_ratio",
        "gpu.tensor_active_ratio",
        "gpu.dram_active_ratio",
        "gpu.utilization_ratio",
        "gpu.power_w",
    )
    day.data["table"] = {
        kind: {name: some.get(name) for name in names} for kind, some in table.items()
    }
    day.expect(
        "gemm: tensor active", table["gemm"].get("gpu.tensor_active_ratio"), low=0.5, high=1.0
    )
    day.expect("copy: DRAM active", table["copy"].get("gpu.dram_active_ratio"), low=0.75, high=1.0)
    day.expect("idle: SM active", table["idle"].get("gpu.sm_active_ratio"), high=0.01)
    day.expect("one block: utilisation", table["one_block"].get("gpu.utilization_ratio"), low=0.9)
    if day.simulated:
        day.note(
            "one block: SM active",
            "not checked: the simulated driver knows only how long the card is busy",
        )
    else:
        day.expect(
            "one block: SM active",
            table["one_block"].get("gpu.sm_active_ratio"),
            low=0.004,
            high=0.03,
        )


@check(value=325, seconds=25)
def pcie(day: Day) -> None:
    """The PCIe rate during pinned copies is that of the bytes copied; packet headers may add some
    15 %."""
    with load("h2d", 7.0) as found:
        time.sleep(2.0)
        reading = read(1.0)
        seen = need(
            reading.state.readings.present(day.device), "gpu.pcie_rx_bytes_per_s", reading, day
        )
    day.note("copied", found["rate"], "bytes/s")
    day.note(
        "source",
        reading.state.readings.substitutes.get(
            f"gpu.pcie_rx_bytes_per_s{{device={day.device}}}", "nvml.gpm"
        ),
    )
    day.expect("shown over copied", seen / found["rate"], low=0.95, high=1.2)


@check(value=80, seconds=45)
def energy(day: Day) -> None:
    """The energy counter agrees with power over 20 s."""
    with load("gemm", 26.0):
        time.sleep(1.5)
        first = values(day, 0.3)
        begun, powers = time.monotonic(), []
        while time.monotonic() - begun < 20.0:
            powers.append(values(day, 0.3).get("gpu.power_w", float("nan")))
        last, span = values(day, 0.3), time.monotonic() - begun
    held = [
        name.removeprefix("gpu.clocks_")
        for name, value in last.items()
        if name.startswith("gpu.clocks_") and value
    ]
    day.note("clocks are limited by", ", ".join(held) or "nothing")
    if "gpu.energy_j" not in first:
        raise NotHereError("the driver has no energy counter")
    day.note("power", statistics.fmean(powers), "W")
    day.expect(
        "counter over integrated power",
        (last["gpu.energy_j"] - first["gpu.energy_j"]) / (statistics.fmean(powers) * span),
        low=0.92,
        high=1.08,
    )


@check(value=60, seconds=35)
def sampler_cost(day: Day) -> None:
    """The sampler's share of a core at 1 Hz and at 10 Hz."""
    day.expect("cores at 1 Hz, the default", _sampler_share(1.0, 12.0), high=0.05)
    # it depends on the driver's calls more than on us
    day.note("cores at 10 Hz", _sampler_share(0.1, 12.0))


def _sampler_share(interval_s: float, seconds: float) -> float:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            command = [
                sys.executable,
                "-m",
                "gpuconsole.telemetry.sampler",
                "--fd",
                str(theirs.fileno()),
                "--interval",
                str(interval_s),
            ]
            child = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        try:
            process, begun = psutil.Process(child.pid), 0.0
            deadline, start = time.monotonic() + seconds + 3.0, 0.0
            ours.settimeout(0.2)
            while time.monotonic() < deadline:
                with contextlib.suppress(TimeoutError):
                    ours.recv(1 << 20)
                # the start itself does not count
                if not start and time.monotonic() > deadline - seconds:
                    start, begun = time.monotonic(), sum(process.cpu_times()[:2])
            return (sum(process.cpu_times()[:2]) - begun) / (time.monotonic() - start)
        finally:
            child.kill()
            child.wait()
