"""Scripted sessions for tests: each shows one situation and records the requests that it
received."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection
from pathlib import Path

import msgspec

from gpuconsole.model.certificate import Attempt, Certificate, Tuning
from gpuconsole.model.experiments import Speedup, Trial
from gpuconsole.model.finding import Evidence, Finding, Interval, Signal, Suggestion
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.machine import Device, Peaks
from gpuconsole.model.metrics import series_key
from gpuconsole.model.profile import ProfileReport
from gpuconsole.model.run import Distribution, Run, RunState, Summary
from gpuconsole.model.scenario import Scenario, Teaches, Workload
from gpuconsole.model.snapshot import Environment, Snapshot
from gpuconsole.session.api import SessionError, View
from gpuconsole.session.jobs import Ports

H200 = Device(
    "gpu:0",
    "NVIDIA H200",
    150_754_820_096,
    "GPU-0000",
    Peaks(bf16_flops_per_s=989e12, memory_bytes_per_s=4.8e12, source="datasheet"),
    "5.0 x16",
    "",
)
HOST = Device("cpu", "AMD EPYC 9654 96-Core Processor", 16 << 30)
NO_GPU = "no NVIDIA driver: libnvidia-ml.so.1 not found"
KNOBS: Knobs = {
    "batch_size": 8,
    "seq_len": 256,
    "precision": "fp32",
    "torch_compile": "off",
    "num_workers": 0,
    "prefetch_factor": 2,
    "pin_memory": False,
    "log_every": 1,
    "save_every": 0,
    "optim": "adamw",
    "storage_latency_ms": 2.0,
}
PHASES = {
    "data_wait": 0.41,
    "h2d": 0.012,
    "forward": 0.18,
    "backward": 0.29,
    "optimizer": 0.06,
    "logging": 0.003,
    "other": 0.045,
}
GPU_VALUES = {
    "gpu.sm_active_ratio": 0.78, "gpu.tensor_active_ratio": 0.31,
    "gpu.hbm_used_bytes": 61.2 * 2**30, "gpu.hbm_total_bytes": 140.4 * 2**30,
    "gpu.hbm_bytes_per_s": 2.02e12, "gpu.dram_active_ratio": 0.42,
    "gpu.pcie_rx_bytes_per_s": 12.1e9, "gpu.pcie_tx_bytes_per_s": 0.3e9, "gpu.power_w": 612.0,
    "gpu.power_limit_w": 700.0, "gpu.temperature_c": 61.0, "gpu.sm_clock_hz": 1.98e9,
    "workload.tokens_per_s": 18_240.0, "workload.samples_per_s": 71.2,
    "workload.step_time_s": 0.44, "workload.mfu_ratio": 0.31,
}  # fmt: skip
HOST_VALUES = {
    "host.cores_busy": 3.2, "host.run_queue_delay_ratio": 0.18,
    "host.memory_used_bytes": 5.1 * 2**30, "host.memory_total_bytes": 16.0 * 2**30,
    "host.load_average_1min": 4.12, "host.swap_used_bytes": 1.5 * 2**30,
    "host.swap_total_bytes": 8.0 * 2**30, "host.disk_read_bytes_per_s": 0.0,
    "host.disk_write_bytes_per_s": 1.2e6, "host.net_rx_bytes_per_s": 420.0,
    "host.net_tx_bytes_per_s": 1800.0,
}  # fmt: skip

WORKERS = Suggestion(
    {"num_workers": 4},
    Interval(1.45, 1.69),
    "The GPU waits for batches; workers load them beside the step.",
    "loader = DataLoader(data, num_workers=4)",
)
STARVED = Finding(
    "input.too_few_workers",
    "fires",
    "Too few dataloader workers",
    0.41,
    "high",
    "data wait 182 of 440 ms; +1 worker raised the loader 1.9x",
    (
        Evidence("data_wait_ratio", 0.41, "ratio", 0.1, "step breakdown, n=812"),
        Evidence("loader_speedup", 1.9, "x", 1.2, "probe: one more worker"),
    ),
    (WORKERS, Suggestion({"num_workers": 2}, Interval(1.3, 1.5), "Half of it.", "")),
)
FP32 = Finding(
    "compute.fp32_matmuls",
    "fires",
    "fp32 matmuls on a device with tensor cores",
    0.22,
    "medium",
    "forward and backward 207 of 440 ms in fp32",
    (),
    (
        Suggestion(
            {"precision": "bf16"},
            Interval(1.1, 1.25),
            "Tensor cores multiply bf16 faster.",
            "with torch.autocast('cuda', torch.bfloat16):",
        ),
    ),
)
COMM = Finding(
    "comm.exposed",
    "cant_tell",
    "Exposed communication",
    summary="needs comm_ratio",
    missing=("comm_ratio",),
)
LOGGING = Finding(
    "side.logging", "clear", "Logging every step", summary="logging takes 0.3 % of a step"
)
FINDINGS = [STARVED, FP32, COMM, LOGGING]
"""In the order of the diagnosis."""

GPT = Workload("training.gpt", "a small transformer", "tokens", tuple(KNOBS))
SCENARIOS = [
    Scenario(
        "train-gpt",
        "Train a small transformer",
        GPT,
        "A GPT on plain text, healthy settings.",
        KNOBS,
        {},
        {},
        Teaches("a healthy run", "", {}),
    ),
    Scenario(
        "data-starved",
        "A loader that cannot keep up",
        GPT,
        "Slow storage and no loader workers: the device waits for its batches.",
        KNOBS,
        {"batch_size": 4},
        {},
        Teaches(
            "data_wait is the largest part of a step", "input.too_few_workers", {"num_workers": 4}
        ),
    ),
    Scenario(
        "logging-heavy",
        "Logging every step",
        GPT,
        "Histograms of all gradients, each step.",
        KNOBS,
        {},
        {},
        Teaches("logging", "side.logging", {"log_every": 50}),
    ),
]


def summary(rate: float, phases: dict[str, float] = PHASES) -> Summary:
    step = 8000 / rate
    return Summary(
        tokens_per_s=Distribution(rate, rate * 0.0115, 812, rate),
        samples_per_s=Distribution(rate / 256, 0.8, 812, rate / 256),
        step_time_s=Distribution(step, step * 0.05, 812, step, step * 1.1, step * 1.12, step * 1.2),
        phases_ratio=phases, mfu_ratio=0.31, mfu_peak_source="datasheet bf16", steps=812,
    )  # fmt: skip


def view(**changes: object) -> View:
    """Nothing running on a host without a GPU."""
    base = View(
        now=200.0,
        environment=Environment(host="gpubox-07", cores=4, driver=None),
        devices=(HOST,),
        device="cpu",
        no_gpu_reason=NO_GPU,
        latest={series_key(name, "cpu"): value for name, value in HOST_VALUES.items()}
        | {series_key("console.cpu_ratio", "console"): 0.011},
        unavailable={},
        lost={},
        runs=(),
        trials=(),
        state="",
        stage="",
        probing="",
        running_s=0.0,
        notes=(),
        own_cpu_ratio=0.011,
        recording=False,
        recording_to="",
        ended=False,
    )
    return msgspec.structs.replace(base, **changes)


def _of(values: dict[str, float], device: str) -> dict[str, float]:
    return {series_key(name, device): value for name, value in values.items()}


def steps(mean: float, n: int = 400) -> tuple[float, ...]:
    return tuple(
        mean * (1 + 0.06 * math.sin(i * 1.7) + (0.2 if i % 67 == 0 else 0)) for i in range(n)
    )


def gpu_view(**changes: object) -> View:
    """An H200 with a baseline, a kept trial, a reverted one, and findings on the current run."""
    first = Run(
        "1",
        "train-gpt",
        "training.gpt",
        {**KNOBS, "optim": "adamw"},
        "gpu:0",
        "finished",
        started="2026-11-21T10:00:00Z",
        duration_s=60.0,
        summary=summary(15_100),
    )
    second = Run(
        "2", "train-gpt", "training.gpt", {**KNOBS, "optim": "adamw_fused"}, "gpu:0", "running",
        started="2026-11-21T10:01:05Z", steady_from_s=6.0, changes={"optim": "adamw_fused"},
        summary=summary(18_240), findings=FINDINGS,
    )  # fmt: skip
    kept = Trial(
        "1",
        "1",
        {"optim": "adamw_fused"},
        "done",
        Speedup(1.21, 1.18, 1.24),
        None,
        12,
        Interval(1.1, 1.3),
        "win",
        True,
    )
    lost = Trial(
        "2",
        "2",
        {"precision": "bf16"},
        "done",
        Speedup(0.45, 0.43, 0.47),
        None,
        8,
        Interval(1.1, 1.25),
        "worse",
        False,
    )
    reasons = {
        series_key(
            f"gpu.nvlink_{way}_bytes_per_s", "gpu:0"
        ): "no NVLink on this device: not linked to another GPU"
        for way in ("rx", "tx")
    }
    shown = view(
        environment=Environment(host="gpubox-07", cores=96, driver="580.159.03"),
        devices=(H200, HOST), device="gpu:0", no_gpu_reason="",
        latest=_of(GPU_VALUES, "gpu:0") | _of(HOST_VALUES, "cpu"), unavailable=reasons,
        runs=(first, second), trials=(kept, lost), state="running", running_s=102.0,
        step_times=steps(0.44),
    )  # fmt: skip
    return msgspec.structs.replace(shown, **changes)


def trial_view() -> View:
    """The same, while a trial runs."""
    trial = Trial(
        "3",
        "2",
        {"num_workers": 4},
        "running",
        Speedup(1.52, 1.40, 1.66),
        None,
        6,
        Interval(1.45, 1.69),
        elapsed_s=12.0,
    )
    before = gpu_view()
    return msgspec.structs.replace(before, trials=(*before.trials, trial))


def cpu_view(**changes: object) -> View:
    """A host without a GPU, with a run that is not steady yet."""
    run = Run(
        "1",
        "data-starved",
        "training.gpt",
        {**KNOBS, "batch_size": 4},
        "cpu",
        "running",
        started="2026-11-21T10:00:00Z",
        summary=summary(2_310),
    )
    workload = {
        "workload.tokens_per_s": 2_310.0,
        "workload.samples_per_s": 9.0,
        "workload.step_time_s": 0.111,
        "workload.flops_per_s": 41.3e9,
        "workload.mfu_ratio": 0.34,
    }
    shown = view(
        latest=view().latest | _of(workload, "cpu"),
        runs=(run,),
        state="running",
        running_s=12.0,
        step_times=steps(0.111),
        unavailable={
            series_key("host.io_pressure_ratio", "cpu"): "/proc/pressure/io cannot be read"
        },
    )
    return msgspec.structs.replace(shown, **changes)


def failed_view(
    error: str = "out of memory at batch_size 64: 140 GiB in use, 2.1 GiB asked for",
) -> View:
    run = Run("1", "train-gpt", "training.gpt", {**KNOBS, "batch_size": 64}, "cpu", "failed", error)
    return view(runs=(run,), state="failed", notes=("the worker ended with exit code 1",))


def tuned_view(under_way: bool) -> View:
    """Two changes kept, one not, one that failed; `under_way`: a third diagnosis is being made."""
    kept = Trial(
        "1",
        "1",
        {"num_workers": 4},
        "done",
        Speedup(1.62, 1.51, 1.74),
        None,
        16,
        Interval(1.45, 1.69),
        "win",
        True,
    )
    none = Trial(
        "2",
        "2",
        {"precision": "bf16"},
        "done",
        Speedup(1.01, 0.99, 1.02),
        None,
        20,
        Interval(1.1, 1.25),
        "no_gain",
    )
    failed = Trial(
        "3",
        "2",
        {"batch_size": 32},
        "failed",
        predicted=Interval(1.1, 1.4),
        error="out of memory at batch_size 32",
    )
    last = Trial(
        "4",
        "2",
        {"log_every": 20},
        "done",
        Speedup(1.11, 1.07, 1.15),
        None,
        12,
        Interval(1.08, 1.12),
        "win",
        True,
    )
    after: Knobs = {**KNOBS, "num_workers": 4}
    attempts = [
        Attempt(
            "input.too_few_workers", KNOBS, kept, "loader = DataLoader(data, num_workers=4)", 21.0
        ),
        Attempt("gpu.fp32_no_tensor_core", after, none, "", 34.0),
        Attempt("gpu.small_batch", after, failed, "", 40.0),
        Attempt(
            "host.logging_io", after, last, "if step % 20 == 0:\n    logger.log(metrics)", 61.0
        ),
    ]
    made = Certificate(
        scenario="data-starved",
        device="gpu:0",
        start=KNOBS,
        end={**after, "log_every": 20},
        attempts=attempts,
        elapsed_s=78.0,
        stopped="" if under_way else "no further change is predicted to gain 5 %",
        proof=None
        if under_way
        else Trial("5", "3", {}, "done", Speedup(0.55, 0.52, 0.58), None, 16, verdict="worse"),
    )
    return gpu_view(
        tuning=Tuning(made, 300.0, under_way),
        tuning_at=100.0,
        probing="batch_elasticity" if under_way else "",
    )


class FakeRemote:
    """An agent on the console's socket."""

    activity = "an agent is connected: it waits"

    def __init__(self, session: FakeSession) -> None:
        self._session = session

    def switch(self) -> str:
        self._session.calls.append(("switch",))
        return "you have taken the control"


class FakeSession:
    """A session that shows `shown` and records the requests that it receives."""

    def __init__(self, shown: View) -> None:
        self.shown = shown
        self.job = None
        self.player = None
        self.remote = FakeRemote(self)
        self.calls: list[tuple[object, ...]] = []
        self.error = self.recording_lost = ""
        self.list = SCENARIOS
        self.views = 0
        self.warm = False

    async def open(self) -> None:
        """At once."""

    async def keep_warm(self, wanted: bool) -> None:
        self.warm = wanted

    def environment(self) -> Environment:
        return self.shown.environment

    def snapshot(self) -> Snapshot:
        return Snapshot(
            created="",
            gpuconsole="",
            environment=self.shown.environment,
            runs=list(self.shown.runs),
            trials=[],
        )

    async def end_run(self, state: RunState, error: str | None = None) -> None:
        self._call("end_run", state, error)

    def probe_only_for(self, knobs: Collection[str]) -> None:
        self._call("probe_only_for", knobs)

    def view(self) -> View:
        self.views += 1
        return self.shown

    def ports(self, pids: Collection[int]) -> Ports:
        return dict.fromkeys(pids, ())

    def history(self, key: str, columns: int, seconds: float) -> list[float | None]:
        value = self.shown.latest.get(key)
        if value is None:
            return [None] * columns
        wave = (
            0.75 + 0.25 * math.sin((columns - i) / 5) + 0.08 * math.sin(i * 2.3)
            for i in range(columns)
        )
        return [None if i < columns // 8 else value * part for i, part in enumerate(wave)]

    def points(self, key: str) -> tuple[list[float], list[float]]:
        value = self.shown.latest.get(key)
        if value is None:
            return [], []
        times = [float(t) for t in range(30, int(self.shown.now))]
        return times, [
            value * (0.82 if t < 98 else 1.0) * (1 + 0.02 * math.sin(t * 1.9)) for t in times
        ]

    def scenarios(self) -> list[Scenario]:
        return self.list

    def _call(self, *call: object) -> None:
        self.calls.append(call)
        if self.error:
            raise SessionError(self.error)

    async def start(self, scenario: str, overrides: Knobs) -> None:
        self._call("start", scenario, overrides)

    async def stop(self) -> None:
        self._call("stop")

    async def set_knobs(self, changes: Knobs) -> None:
        self._call("set_knobs", changes)
        run = self.shown.run
        self.shown = msgspec.structs.replace(
            self.shown, undo={name: run.knobs[name] for name in changes} if run else {}
        )

    async def try_change(self, changes: Knobs, predicted: Interval | None = None) -> Trial:
        self._call("try_change", changes, predicted)
        await asyncio.sleep(0)
        return Trial("9", "2", changes, "done", Speedup(1.5, 1.4, 1.6), verdict="win", kept=True)

    async def tune(self) -> Certificate:
        self._call("tune")
        assert self.shown.tuning is not None
        return self.shown.tuning.certificate

    def cancel_trial(self) -> None:
        self._call("cancel_trial")

    def end_tuning(self) -> None:
        self._call("end_tuning")

    async def profile(self, steps: int = 3, rank: int = 0) -> ProfileReport:
        self._call("profile", *([rank] if rank else []))
        assert self.shown.run is not None and self.shown.run.profile is not None
        return self.shown.run.profile

    async def probe_server(self) -> dict[str, Signal]:
        self._call("probe_server")
        return {}

    async def revert(self) -> None:
        self._call("revert")

    async def keep_baseline(self) -> str:
        self._call("keep_baseline")
        return "run 2 will be kept as a baseline when it ends"

    def export(self, path: Path | None = None) -> Path:
        self._call("export")
        return Path("snapshot.json")

    def toggle_recording(self, path: Path | None = None) -> Path | None:
        self._call("record", path)
        return Path("session.jsonl")

    async def close(self) -> None:
        self.calls.append(("close",))
